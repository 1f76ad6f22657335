"""Keep rollouts on disk between sampling and learning, in Arrow files that `datasets` opens.

`append` writes a batch to a file of its own and forgets it; `take` joins the files into one batch whose arrays are
mapped from disk, so that memory holds only what is being read. `rlcore_disk_store/store.py` is the store,
`rlcore_disk_store/shards.py` the files, `rlcore_disk_store/folders.py` where they lie and when they go.
"""
