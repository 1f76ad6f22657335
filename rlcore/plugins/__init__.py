"""Discovery, loading, selection and isolation of plugins."""
