"""`toolscale connect`: Toolscale as a server in the configuration of a client.

- `targets`: the file of each client, and the form of an entry in it
- `jsonc`, `toml`, `yaml`: minimal edits of a text, which keep the rest of it
- `editing`: an edit, checked by parsing its result
- `plan`: the change of a client's file
"""
