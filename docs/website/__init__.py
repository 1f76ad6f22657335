"""The documentation as a site: its pages, their order, and the settings of Sphinx."""
