"""What each command does, past parsing. One module for each group of commands; cli.py imports the one it needs."""
