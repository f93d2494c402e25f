# shellcheck shell=bash
# Real containers for test legs, by Podman, where no Docker engine is needed and no registry is reachable.
