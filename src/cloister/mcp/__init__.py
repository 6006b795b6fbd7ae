"""The sandbox as an MCP server: tools and files for any client that speaks the protocol."""
