"""Imported once by the fork server of :mod:`tests.support.forked_workers`."""

from tests.support.forked_workers import preload

preload()
