"""File formats: each reader returns a :class:`compress.data.formats.table.Table`."""
