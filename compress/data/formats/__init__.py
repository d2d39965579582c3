"""Readers of file formats: each gives a :class:`compress.data.formats.table.Table`."""
