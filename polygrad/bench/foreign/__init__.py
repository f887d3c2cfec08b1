"""Adapters of libraries that need not be installed: importing one of these modules imports its library."""
