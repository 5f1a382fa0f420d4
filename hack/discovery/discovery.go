// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package discovery makes the module require google.golang.org/api, which has Google's
// discovery documents.
package discovery

import _ "google.golang.org/api/googleapi" // any package of the module
