#!/bin/sh
# Stores the secret join.json, with which new machines join a cluster of DISTRIBUTION: the address
# of a server and a new bootstrap token, which is valid for four hours
# (https://docs.k3s.io/cli/token#bootstrap). Run it every hour on a server of the cluster:
#
#   join-secret.sh https://ADDRESS:PORT OPTION...
#
# The options are nstance-admin's for the storage and the encryption key. The token is not
# an argument of a program, because every user of the machine can read arguments.
set -eu
umask 077
server=$1
shift
token=$(DISTRIBUTION token create --ttl 4h --description "machines of Nstance")
nstance-admin secret set join.json --from-file - "$@" <<JSON
{"server": "$server", "token": "$token"}
JSON
