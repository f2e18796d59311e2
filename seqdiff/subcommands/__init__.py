"""The subcommands that every domain shares; each module is a ``seqdiff.commands.Command``."""
