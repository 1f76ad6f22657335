"""The command `rlcore new-plugin`: writes a working plugin package with tests, to be edited by its author.

`templates/common` contains the files of every plugin, `templates/<kind>` those of one kind, as texts for
`string.Template` of the standard library. A file's path in the package is its path below that folder without
`.tmpl`; `package` stands for the import package and `dot-` for a leading dot. Files whose names begin with `part-` are
inserted into the README. No module here imports torch.
"""
