"""Write a new plugin: a package that works, tests itself against the laws, and is there to be changed.

`templates/common` holds what every plugin has, `templates/<kind>` what one kind has besides, as texts for the standard
library's `string.Template`. A file's path in the package is its path there, less `.tmpl`, with `package` for the import
package and `dot-` for a leading dot. What begins with `part-` is no file but a piece of the README. Light: no torch.
"""
