#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

# Checks that every document that a file cites, in a comment or by a link, is in
# the tree and has the heading that is named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

git ls-files --cached --others --exclude-standard | go run ./hack/citations
