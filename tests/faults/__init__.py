"""Tests with damaged files, hostile files, and processes that are killed."""
