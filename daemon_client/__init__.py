"""The Multica daemon and command line: runs coding agents on a machine for a Multica server. Needs no Django."""

__version__ = "0.1.0"
