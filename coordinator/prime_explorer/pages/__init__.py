"""What each page shows: a frozen view for each, read from the index. The templates and the JSON are made from them."""
