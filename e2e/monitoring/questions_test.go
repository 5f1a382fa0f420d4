// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/metricstest"
)

// question is a row of the table in docs/runbooks/README.md#questions-on-call.
type question struct{ text, answer, panel string }

// readQuestions returns the rows of the table.
func readQuestions(t *testing.T) []question {
	t.Helper()
	var questions []question
	for line := range strings.Lines(metricstest.Section(t, filepath.Join("..", "..", "docs", "runbooks", "README.md"), "Questions on call")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| ") || !strings.Contains(line, "`") {
			continue // no row, or the header
		}
		require.Len(t, cells, 3, "cells of the row %s", line)
		answer := strings.TrimSpace(cells[1])
		require.Regexp(t, "^`[^`]+`$", answer, "the answer is one command or query")
		questions = append(questions, question{strings.TrimSpace(cells[0]), strings.Trim(answer, "`"), strings.TrimSpace(cells[2])})
	}
	return questions
}

// The commands and queries in the table of questions work as they are written: in a situation that
// the test produces, each command or query names the object, the time, the writer or the figure,
// for a user who has only the rights of the ClusterRole in the manifests.
func TestQuestionsOnCall(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	questions := readQuestions(t)
	var written []string
	for _, question := range questions {
		written = append(written, question.text)
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(expectations)), written, "questions with an expectation, and those of the table")
	panels := dashboardQueries(t)
	o := newOnCall(t)
	for _, question := range questions {
		t.Run(question.text, func(t *testing.T) {
			if question.panel != "–" {
				assert.Contains(t, panels, question.panel, "panels of the dashboard")
			}
			expectations[question.text](t, o, question.answer)
		})
	}
}

// onCall is a user who is on call, with kubectl, its plugin and Prometheus.
type onCall struct {
	prometheus prometheusAPI
	// path is PATH, and kubeconfig the kubeconfig of an account with the ClusterRole of readers.
	path, kubeconfig string
	// drained is the Node of the blocked drain, "" before a drain is blocked.
	drained string
}

func newOnCall(t *testing.T) *onCall {
	t.Helper()
	o := &onCall{prometheus: runPrometheus(t, shippedRules(t))}
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	builder := controlplane.Builder{Root: root, Progress: os.Stderr}
	binaries, err := builder.ControlPlane(t.Context())
	require.NoError(t, err)
	plugin, err := builder.Plugin(t.Context())
	require.NoError(t, err)
	dir := t.TempDir()
	script := "#!/bin/sh\nexec " + binaries.Kube + ` kubectl "$@"` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700)) //nolint:gosec // it is executed
	o.path = strings.Join([]string{dir, filepath.Dir(plugin), os.Getenv("PATH")}, string(filepath.ListSeparator))
	o.kubeconfig, err = env.KubeconfigWithToken("on-call", env.CreateAccount(t, "on-call", "nstance-reader"))
	require.NoError(t, err)

	// A rate has no value for what happened before the first scrape.
	testcluster.EventuallyEvery(t, time.Second, timeout, "the operator was scraped", func(ctx context.Context) error {
		scraped := o.query(ctx, t, `sum by (shard) (nstance_operator_instance_startup_duration_seconds_count)`)
		if len(scraped) != len(shards) {
			return fmt.Errorf("of shards %v", scraped)
		}
		return nil
	})
	env.CreatePoolForTest(t, observedPool, observedReplicas)
	env.UntilRunning(t, observedPool, observedReplicas)
	t.Cleanup(func() {
		if o.drained != "" {
			env.UnblockDrains(t, observedPool)
		}
	})
	return o
}

// run runs a command in a shell, with values for the names in it, and returns what it
// prints.
func (o *onCall) run(ctx context.Context, t *testing.T, command string, values ...string) string {
	t.Helper()
	command = strings.NewReplacer(values...).Replace(command)
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+o.path, "KUBECONFIG="+o.kubeconfig)
	printed, err := cmd.CombinedOutput()
	t.Logf("$ %s\n%s", command, printed)
	require.NoError(t, err)
	return string(printed)
}

// query returns the values of a query by shard, "" for a value of all shards.
func (o *onCall) query(ctx context.Context, t *testing.T, expression string) map[string]float64 {
	t.Helper()
	results, err := o.prometheus.query(ctx, expression)
	require.NoError(t, err)
	values := map[string]float64{}
	for _, result := range results {
		value, err := result.number()
		require.NoError(t, err)
		values[result.Metric["shard"]] = value
	}
	t.Logf("%s = %v", expression, values)
	return values
}

const (
	// observedPool is the pool that the questions are about.
	observedPool     = "observed"
	observedReplicas = 4
	// writer is the field manager that makes it smaller.
	writer = "night-shift"
)

// expectations has a function for each question, which produces its situation and expects that the
// command or query answers it.
var expectations = map[string]func(t *testing.T, o *onCall, answer string){
	"Which shard is not connected, and since when?":            namesLostShard,
	"Why is a pool not at its size?":                           namesShortfall,
	"Who made a pool smaller, and when?":                       namesWriterAndTime,
	"Why is an instance deleted, and who caused it?":           namesCause,
	"Why does a drain not finish?":                             namesBudget,
	"How long do machines take to become Nodes, by shard?":     hasStartupTimes,
	"When does the certificate of the operator end?":           hasEndOfOperatorCertificate,
	"When do the certificates of the servers end?":             hasEndsOfServerCertificates,
	"Since when is the configuration of a shard in force?":     hasTimesOfConfigurations,
	"On which shards does another writer change groups?":       hasShardOfDrift,
	"Which groups does another writer change again and again?": namesGroupOfDrift,
}

func namesLostShard(t *testing.T, o *onCall, command string) {
	killed := time.Now()
	testcluster.Kill(t, env.ShardServer(slowShard))
	var since time.Time
	testcluster.Eventually(t, timeout, "the shard is not connected", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, observedPool, slowShard)
		if err != nil {
			return err
		}
		if err := testcluster.HasCondition(group.Status.Conditions, v1beta1.ConditionShardReachable, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable); err != nil {
			return err
		}
		since = meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable).LastTransitionTime.Time
		return nil
	})
	// Times of conditions are whole seconds.
	assert.WithinRange(t, since, killed.Truncate(time.Second), time.Now())
	lost := regexp.MustCompile(`(\S+): ShardReachable is False for (\S+), ShardUnreachable`)
	testcluster.EventuallyEvery(t, time.Second, timeout, "the shard is not connected for seconds", func(ctx context.Context) error {
		before := time.Now()
		found := lost.FindAllStringSubmatch(o.run(ctx, t, command), -1)
		after := time.Now()
		require.Len(t, found, 1, "shards that are not connected")
		assert.Equal(t, "nstance-system/"+v1beta1.ShardGroupName(observedPool, slowShard), found[0][1])
		age, err := time.ParseDuration(found[0][2])
		require.NoError(t, err)
		// The command prints whole seconds.
		assert.GreaterOrEqual(t, age, before.Sub(since).Truncate(time.Second))
		assert.LessOrEqual(t, age, after.Sub(since))
		if age < 3*time.Second {
			return fmt.Errorf("for %s", age)
		}
		return nil
	})
	testcluster.Start(t, env.ShardServer(slowShard))
	env.UntilRunning(t, observedPool, observedReplicas)
}

func namesShortfall(t *testing.T, o *onCall, command string) {
	const name = "stockless"
	env.SetQuota(t, slowShard, map[string]int{scarceType: 0})
	t.Cleanup(func() { env.SetQuota(t, slowShard, nil) })
	createScarcePool(t, name, 2, steadyShard, slowShard)
	t.Cleanup(func() { env.DeletePools(t, name) })
	testcluster.Eventually(t, timeout, "the pool has a shortfall", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionCapacityAvailable, metav1.ConditionFalse, v1beta1.ReasonWaiting)
	})
	printed := o.run(t.Context(), t, command, "POOL", name)
	assert.Regexp(t, `NstanceMachinePool nstance-system/stockless: CapacityAvailable is False for \S+, Waiting: shards cannot create 1 instances: us-west-2b lacks 1 \(.+`, printed)
	assert.NotContains(t, printed, steadyShard+" lacks")
}

// blockedDrain makes the observed pool smaller once, and returns the Node whose drain is
// blocked.
func (o *onCall) blockedDrain(t *testing.T) string {
	t.Helper()
	if o.drained != "" {
		return o.drained
	}
	env.BlockDrains(t, observedPool)
	_, err := env.ClusterAPI("machinepools").Patch(t.Context(), observedPool, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, observedReplicas-1), metav1.PatchOptions{FieldManager: writer}, "scale")
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "a drain is blocked", func(ctx context.Context) error {
		groups, err := env.ShardGroups(ctx, observedPool)
		if err != nil {
			return err
		}
		for _, group := range groups {
			if meta.IsStatusConditionFalse(group.Status.Conditions, v1beta1.ConditionDrainsProgressing) {
				o.drained, err = cordonedNode(ctx)
				return err
			}
		}
		return errors.New("no condition reports it")
	})
	return o.drained
}

// cordonedNode returns the Node of the observed pool that is cordoned for its drain.
func cordonedNode(ctx context.Context) (string, error) {
	nodes, err := env.Nodes(ctx, observedPool)
	if err != nil {
		return "", err
	}
	for i := range nodes {
		if nodes[i].Annotations[v1beta1.AnnotationCordonedFor] != "" {
			return nodes[i].Name, nil
		}
	}
	return "", errors.New("no Node is cordoned")
}

func namesWriterAndTime(t *testing.T, o *onCall, command string) {
	before := time.Now()
	o.blockedDrain(t)
	printed := o.run(t.Context(), t, command, "POOL", observedPool)
	smaller := regexp.MustCompile(`(?m)^(\S+) +from 4 to 3 instances; MachinePool observed, spec\.replicas: `+writer+` through scale`).
		FindAllStringSubmatch(printed, -1)
	require.Len(t, smaller, 1, "events of the scale-down")
	at, err := time.Parse(time.RFC3339, smaller[0][1])
	require.NoError(t, err)
	assert.WithinRange(t, at, before, time.Now())
}

func namesCause(t *testing.T, o *onCall, command string) {
	node := o.blockedDrain(t)
	printed := o.run(t.Context(), t, command, "NODE", node)
	assert.Regexp(t, `(?m)^DrainRequested +\S+ +shard us-west-2[ab] +Node/`+node+` +scale-down`, printed)
	assert.Regexp(t, `(?m)^ScaleDown +\S+ +`+writer+` +MachinePool/observed spec\.replicas +.*from 4 to 3 instances`, printed)
}

func namesBudget(t *testing.T, o *onCall, command string) {
	node := o.blockedDrain(t)
	printed := o.run(t.Context(), t, command, "NODE", node)
	pods, err := env.Kube.CoreV1().Pods(observedPool).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	require.NoError(t, err)
	require.Len(t, pods.Items, 1)
	assert.Regexp(t, `(?m)^`+node+` +observed +us-west-2[ab] +Shard +scale-down .* Blocked$`, printed)
	assert.Contains(t, printed, "Pod observed/"+pods.Items[0].Name+": PodDisruptionBudget all allows 0 disruptions")
}

// hasStartupTimes expects the times of the instances of the observed pool: the instances of the
// slow shard boot for longer than five seconds, which is a limit of the histogram.
func hasStartupTimes(t *testing.T, o *onCall, query string) {
	var times map[string]float64
	testcluster.EventuallyEvery(t, time.Second, timeout, "the shards have times", func(ctx context.Context) error {
		times = o.query(ctx, t, query)
		if math.IsNaN(times[steadyShard]) || math.IsNaN(times[slowShard]) || len(times) != len(shards) {
			return fmt.Errorf("%v", times)
		}
		return nil
	})
	assert.Positive(t, times[steadyShard])
	assert.Greater(t, times[slowShard], 5.0)
}

func hasEndOfOperatorCertificate(t *testing.T, o *onCall, query string) {
	certificate, err := env.OperatorCertificate(t.Context())
	require.NoError(t, err)
	assert.Equal(t, map[string]float64{"": float64(certificate.NotAfter.Unix())}, o.query(t.Context(), t, query))
}

func hasEndsOfServerCertificates(t *testing.T, o *onCall, query string) {
	want := map[string]float64{}
	for _, shard := range shards {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: pkitest.Roots(env.Installation.Authority()), MinVersion: tls.VersionTLS13}}
		connection, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(shard.RegistrationPort)))
		require.NoError(t, err)
		want[shard.ID] = float64(connection.(*tls.Conn).ConnectionState().PeerCertificates[0].NotAfter.Unix())
		require.NoError(t, connection.Close())
	}
	assert.Equal(t, want, o.query(t.Context(), t, query))
}

// hasTimesOfConfigurations gives the slow shard a new configuration, and expects the time of its
// file. The time of the steady shard stays.
func hasTimesOfConfigurations(t *testing.T, o *onCall, query string) {
	want := o.query(t.Context(), t, query)
	require.Contains(t, want, steadyShard)
	before := want[slowShard]
	env.SetQuota(t, slowShard, map[string]int{scarceType: 100})
	t.Cleanup(func() { env.SetQuota(t, slowShard, nil) })
	info, err := os.Stat(filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.ConfigKey(slowShard))))
	require.NoError(t, err)
	want[slowShard] = float64(info.ModTime().Unix())
	require.Greater(t, want[slowShard], before)
	testcluster.EventuallyEvery(t, time.Second, timeout, "the time is that of the file", func(ctx context.Context) error {
		if times := o.query(ctx, t, query); !maps.Equal(times, want) {
			return fmt.Errorf("%v, want %v", times, want)
		}
		return nil
	})
}

func hasShardOfDrift(t *testing.T, o *onCall, query string) {
	const name = "drifting"
	env.CreatePoolForTest(t, name, 2)
	env.UntilRunning(t, name, 2)
	assert.Empty(t, o.query(t.Context(), t, query), "shards before")
	require.NoError(t, changeGroup(t.Context(), name, 2))
	testcluster.EventuallyEvery(t, time.Second, timeout, "the correction is counted", func(ctx context.Context) error {
		if corrected := o.query(ctx, t, query); corrected[slowShard] == 0 || len(corrected) != 1 {
			return fmt.Errorf("%v", corrected)
		}
		return nil
	})
}

func namesGroupOfDrift(t *testing.T, o *onCall, command string) {
	const name = "drifting-again"
	env.CreatePoolForTest(t, name, 2)
	env.UntilRunning(t, name, 2)
	testcluster.EventuallyEvery(t, time.Second, timeout, "the drift is repeated", func(ctx context.Context) error {
		count, err := env.CountEvents(ctx, v1beta1.ShardGroupName(name, slowShard), "DriftRepeated")
		if err == nil && count == 0 {
			err = errors.Join(errors.New("no event"), changeGroup(ctx, name, 2))
		}
		return err
	})
	assert.Regexp(t, `(?m)^drifting-again--us-west-2b +the group on shard "us-west-2b" was changed by another writer and corrected 3 times since `, o.run(t.Context(), t, command))
}
