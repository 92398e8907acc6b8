"""The SQLite index that follows from the log.

Pure: schema, fold, fold_work, fold_audits (leaf in, SQL statements out). Rim: store (SQLite), formats (which file is
served), follower (mirror files, HTTP, the indexing process). No page, template or HTTP handler lives here.
"""
