"""Listed and discovered servers -> one list.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vllmeter.config.settings import Server


def merge_servers(
    listed: Sequence[Server], found: Iterable[tuple[str, Sequence[Server]]]
) -> tuple[tuple[Server, ...], tuple[str, ...]]:
    """The servers to sample, and a sentence for each that was left out.

    Listed servers win; among sources the earlier wins.  The same URL twice is one server.  Two servers of one name
    at different URLs are both kept: the later one gets its host and port added to its name.
    """
    servers: list[Server] = list(listed)
    urls = {server.url: server.name for server in servers}
    names = {server.name for server in servers}
    notes: list[str] = []
    for source, group in found:
        for server in group:
            if server.url in urls:
                continue
            name = server.name
            if name in names:
                name = f"{server.name}-{server.url.partition('://')[2].replace('[', '').replace(']', '')}"[:63]
                if name in names:
                    notes.append(f"{source}: {server.url} left out: the name {server.name!r} is taken twice")
                    continue
                server = server.model_copy(update={"name": name})  # noqa: PLW2901
            servers.append(server)
            urls[server.url] = name
            names.add(name)
    return tuple(servers), tuple(notes)
