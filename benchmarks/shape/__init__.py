"""The shape of the code: places, imports, the two main paths, sizes and English, as one table."""
