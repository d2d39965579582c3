"""Imported once by the fork server of :mod:`tests.support.forked`."""

from tests.support.forked import preload

preload()
