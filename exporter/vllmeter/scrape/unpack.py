"""Bodies that come compressed although nobody asked for it: some proxies do that.

A module of its own because urllib3, whose decoders these are, costs megabytes that no other scrape needs.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable

import urllib3


class UnpackError(Exception):
    """A body that is not what its Content-Encoding says, or an encoding that is not known."""


def unpacked(response: http.client.HTTPResponse) -> Callable[[int], bytes]:
    """A reader of pieces (at most so many bytes; empty at the end) of what the body holds; raises UnpackError.

    It unpacks as it is asked, so that whoever counts can stop a compressed bomb.  What the socket raises comes through.
    """
    headers = dict(response.headers)
    encodings = [each.strip() for each in response.headers.get("content-encoding", "").lower().split(",")]
    unknown = set(encodings) - set(urllib3.HTTPResponse.CONTENT_DECODERS)
    if unknown:  # urllib3 would hand it out as it is
        raise UnpackError(f"Content-Encoding {', '.join(sorted(unknown))!r} was not asked for and is not known")
    reader = urllib3.HTTPResponse(response, headers=headers, preload_content=False)

    def read1(most: int) -> bytes:
        try:
            return reader.read1(most)
        except urllib3.exceptions.DecodeError as error:
            raise UnpackError(str(error)) from error
        except urllib3.exceptions.HTTPError as error:
            cause = error.__cause__ or error.__context__
            if isinstance(cause, OSError | http.client.HTTPException):
                raise cause from error
            raise UnpackError(str(error)) from error

    return read1
