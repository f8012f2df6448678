"""The process and its libraries: memory, log output and optional imports."""
