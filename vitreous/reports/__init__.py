"""Pictures, charts, tables and pages of results: templates, styles and scripts included.

Result objects such as `Explanation` come in, bytes go out; no model runs here.
"""
