
wait_for "$recv/operator-nonce.env"
ignored=()
if [ -e /var/lib/etcd/member ]; then
	# The machine replaces another one, whose volumes it has, with certificates for the other address.
	ignored=(--ignore-preflight-errors=SystemVerification,DirAvailable--var-lib-etcd)
	rm -f /etc/kubernetes/pki/apiserver.* /etc/kubernetes/pki/etcd/server.* /etc/kubernetes/pki/etcd/peer.*
fi
{
	cat <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: "$node_ip", bindPort: 6443}
# Machines get what they join with from the shards. Without this entry kubeadm creates a token that is valid
# for a day.
bootstrapTokens: [{ttl: 1s}]
YAML
	registration
	cat <<YAML
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
clusterName: {{.Cluster.ID}}
kubernetesVersion: {{.Vars.version}}
controlPlaneEndpoint: {{.Vars.endpoint}}
imageRepository: localhost/kubernetes
apiServer:
  extraArgs:
    - {name: client-ca-file, value: /etc/kubernetes/pki/client-ca.crt}
    - {name: audit-policy-file, value: /etc/kubernetes/audit.yaml}
    - {name: audit-log-path, value: /var/log/kubernetes/audit.log}
  extraVolumes:
    - {name: audit-policy, hostPath: /etc/kubernetes/audit.yaml, mountPath: /etc/kubernetes/audit.yaml, readOnly: true, pathType: File}
    - {name: audit-log, hostPath: /var/log/kubernetes, mountPath: /var/log/kubernetes, pathType: DirectoryOrCreate}
networking: {podSubnet: {{.Vars.pod_network}}, serviceSubnet: {{.Vars.service_network}}, dnsDomain: cluster.local}
etcd: {local: {dataDir: /var/lib/etcd, extraArgs: [{name: unsafe-no-fsync, value: "true"}]}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS: ["{{.Vars.dns}}"]
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
nodeStatusUpdateFrequency: 5s
imageGCHighThresholdPercent: 100
evictionHard: {nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
# Otherwise it changes parameters of the kernel, which belong to the machine.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
} >/etc/kubernetes/kubeadm.yaml
# The names of Services are served beside the cluster (e2e/clusterdns).
kubeadm init --config /etc/kubernetes/kubeadm.yaml --skip-token-print --skip-phases=addon/coredns "${ignored[@]}"
touch /run/nstance-joined

# The seed: Cluster API and the operator. A control plane that replaces another one does not apply it again,
# because it would revert what was upgraded since.
export KUBECONFIG=/etc/kubernetes/admin.conf
if ! kubectl -n nstance-system get secret nstance-operator-key >/dev/null 2>&1; then
	apply() { kubectl apply --server-side --field-manager=seed -f "$1"; }
	for file in /seed/*.yaml; do
		until apply "$file"; do sleep 1; done
	done
	# Without the operator, it is installed later.
	[ -e /seed/2-operator.yaml ] || exit 0
	# shellcheck disable=SC1091
	. "$recv/operator-nonce.env"
	# A machine that was replaced before the operator had registered has left them.
	create() { kubectl -n nstance-system create "$@" --dry-run=client -o yaml | apply -; }
	create configmap nstance-cluster-ca --from-file=ca.crt=/opt/nstance-agent/identity/ca.crt
	create secret generic nstance-operator-nonce --from-literal=nonce.jwt="$NONCE"
	echo "$(date +%T) the cluster is seeded"
fi
