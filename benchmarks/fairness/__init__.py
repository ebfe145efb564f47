"""How long one caller waits for `find_tool` while another one loads the service."""
