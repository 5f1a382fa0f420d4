#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Stores the secret join.json, with which new machines join a Kubernetes cluster of kubeadm: a
# kubeconfig with a new bootstrap token, which is valid for four hours. Run it every hour on a
# machine of the control plane:
#
#   join-secret.sh ADDRESS:PORT OPTION...
#
# The address is the API server's, as machines reach it. The options are those of nstance-admin
# for the storage and the encryption key. The token is not an argument of a program, because
# every user of the machine can read arguments.
set -eu
umask 077
server=$1
shift
ca=$(base64 -w0 </etc/kubernetes/pki/ca.crt)
token=$(kubeadm token create --ttl 4h --description "machines of Nstance")
nstance-admin secret set join.json --from-file - "$@" <<JSON
{
  "apiVersion": "v1",
  "kind": "Config",
  "clusters": [{"name": "join", "cluster": {"server": "https://$server", "certificate-authority-data": "$ca"}}],
  "users": [{"name": "join", "user": {"token": "$token"}}],
  "contexts": [{"name": "join", "context": {"cluster": "join", "user": "join"}}],
  "current-context": "join"
}
JSON
