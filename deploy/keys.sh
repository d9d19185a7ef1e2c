#!/bin/sh
# Make a key for clients and one for administrators, in this folder: keys.env has both, as KEY and ADMIN, and keys.txt has
# their digests, for the server. Existing files are not overwritten. SECURITY.md says how to use and rotate keys.
set -euC
umask 077
key=$(openssl rand -hex 32) admin=$(openssl rand -hex 32)
digest() { printf %s "$1" | openssl dgst -sha256 -r | cut -c 1-64; }
echo "export KEY=$key ADMIN=$admin" > keys.env
printf 'sha256:%s\nadmin:sha256:%s\n' "$(digest "$key")" "$(digest "$admin")" > keys.txt
chmod a+r keys.txt  # it contains nothing secret, and a container's user has to read it
echo "wrote keys.txt (digests, for the server) and keys.env (keys, for clients: keep it secret)"
