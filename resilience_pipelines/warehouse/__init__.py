"""The warehouse: from landing folders to the tables that analysts read.

`landing` writes and verifies the folder of one run, `rows` turns it into rows, `schema` holds the
raw tables, `load` fills them, `transform` has dbt build the marts (its project lies in `dbt/`),
`publish` copies them for readers (with `macros`), and `query` asks the copy.

What belongs here: how results are stored, moved and read back. What does not: how they are
measured, and what a difference between them means (`trends`).
"""
