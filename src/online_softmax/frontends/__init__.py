"""Front ends: one file a framework. They document, validate and route; none of them computes."""
