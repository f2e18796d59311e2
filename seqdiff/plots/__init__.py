"""Pictures: figures from data, the only place that imports matplotlib."""
