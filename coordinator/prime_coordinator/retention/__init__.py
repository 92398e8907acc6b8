"""How long files of nodes are kept: when each becomes due (pure), where that is recorded, and the sweep that deletes.

`schedule.py` decides. `file_table.py` keeps what was decided beside the log. `sweeper.py` deletes what is due.
"""
