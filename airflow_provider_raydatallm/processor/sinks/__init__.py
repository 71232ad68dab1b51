"""Shows committed versions as tables, by kind of table. A committed version goes in; the table shows exactly
that version, or an error says why not. Which version is the newest, and which older ones are kept, is decided
in `publish`; here no commit is ever created.
"""
