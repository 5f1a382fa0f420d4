
# The machines of a control plane of several machines have these keys in common. They make their other
# certificates themselves: no machine has to give others anything.
for file in front-proxy-ca.crt front-proxy-ca.key etcd-ca.crt etcd-ca.key sa.key sa.pub join.json bootstrap.crt; do wait_for "$recv/$file"; done
mkdir -p /etc/kubernetes/pki/etcd
for file in front-proxy-ca.crt front-proxy-ca.key sa.key sa.pub; do cp -L "$recv/$file" "/etc/kubernetes/pki/$file"; done
for file in ca.crt ca.key; do cp -L "$recv/etcd-$file" "/etc/kubernetes/pki/etcd/$file"; done
kubeadm init phase kubeconfig admin --kubernetes-version {{.Vars.version}} --control-plane-endpoint {{.Vars.endpoint}} --apiserver-advertise-address "$node_ip"
kubeadm init phase certs etcd-healthcheck-client --kubernetes-version {{.Vars.version}}

api() { kubectl --kubeconfig /etc/kubernetes/admin.conf --request-timeout 5s "$@"; }

# etcd ENDPOINTS COMMAND...: calls members of etcd.
etcd() {
	local endpoints=$1 pki=/etc/kubernetes/pki/etcd
	shift
	etcdctl --cacert $pki/ca.crt --cert $pki/healthcheck-client.crt --key $pki/healthcheck-client.key --endpoints "$endpoints" "$@"
}

# members prints the members of etcd, one a line: id, status, name, address of other members, address of
# clients, and whether it is a learner, which does not vote. Each API server has a member on its machine.
members() {
	local endpoints
	endpoints=$(api -n default get endpointslice kubernetes -o 'jsonpath={range .endpoints[*]}https://{.addresses[0]}:2379,{end}') || return
	etcd "${endpoints%,}" member list | tr -d ' '
}

# host URL: prints its host.
host() { sed -E 's|^https://(.*):[0-9]+$|\1|' <<<"$1"; }

# node NAME: prints the name of a Node and its shard, or nothing if there is no such Node.
node() { api get node "$1" --ignore-not-found -o 'jsonpath={.metadata.name}@{.metadata.labels.nstance\.dev/shard}'; }

# is_gone NAME HOST CHECKS: reports whether nothing accepts connections at the address of a member in this
# number of checks, and its machine is the one that this machine replaces, or has no Node any more.
is_gone() {
	local node='' check
	[ -z "$1" ] || node=$(node "$1") || return
	[ -z "$node" ] || [ "$node" = "$1@{{.Server.Shard}}" ] || return
	for ((check = 0; check < $3; check++)); do
		[ "$check" = 0 ] || sleep 2
		! timeout 3 bash -c "</dev/tcp/$2/2380" 2>/dev/null || return
	done
}

# remove_dead_members removes the members whose machines are gone: etcd admits no new member while one of them
# does not respond. It removes a member that votes only if a majority of the others is healthy, and fails if it
# has to leave one.
remove_dead_members() {
	local all id name peer learner other others healthy clients
	all=$(members) || return
	while IFS=, read -r id _ name peer _ learner <&3; do
		[ "$name" != "{{.Instance.ID}}" ] || continue
		# A machine that joins has a member before its etcd runs: kubeadm gives up after two minutes.
		if [ "$learner" = true ]; then
			is_gone "$name" "$(host "$peer")" 75 || continue
		else
			is_gone "$name" "$(host "$peer")" 3 || continue
			others=0 healthy=0
			while IFS=, read -r other _ _ _ clients learner <&4; do
				if [ "$other" = "$id" ] || [ "$learner" = true ]; then continue; fi
				others=$((others + 1))
				! etcd "$clients" endpoint health >/dev/null 2>&1 || healthy=$((healthy + 1))
			done 4<<<"$all"
			if [ $((2 * healthy)) -le "$others" ]; then
				echo "$(date +%T) member $id of etcd remains: only $healthy of the $others others are healthy"
				return 1
			fi
		fi
		echo "$(date +%T) removing member $id of etcd, whose machine $name is gone"
		etcd "$(living "$id" <<<"$all")" member remove "$id" || return
	done 3<<<"$all"
}

# living ID: prints the addresses for clients of the members but one.
living() { awk -F, -v id="$1" '$1 != id && $5 != "" {print $5}' | paste -sd,; }

# A rotation of another shard is not over as long as there is one more member.
is_complete() {
	local all
	all=$(members) || return
	[ "$(wc -l <<<"$all")" -le "{{.Vars.members}}" ]
}

# former prints the members of the machines of this shard, which this machine replaces, with their addresses.
former() {
	local all id name clients node
	all=$(members)
	while IFS=, read -r id _ name _ clients _; do
		[ -n "$name" ] || continue
		node=$(node "$name")
		[ "$node" != "$name@{{.Server.Shard}}" ] || echo "$id $clients"
	done <<<"$all"
}

join() {
	{
		cat <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {file: {kubeConfigPath: $recv/join.json}}
timeouts: {discovery: 1m0s, tlsBootstrap: 1m0s}
controlPlane: {localAPIEndpoint: {advertiseAddress: "$node_ip", bindPort: 6443}}
YAML
		registration
	} >/etc/kubernetes/kubeadm.yaml
	local replaced clients own
	replaced=$(former)
	# A machine whose join fails ends, and its shard replaces it.
	kubeadm join --config /etc/kubernetes/kubeadm.yaml
	# In a rotation the other machine leaves when this one has joined. Writes that the leader of etcd has when it
	# leaves would fail after seconds, stored or not. While it hands over it refuses writes at once.
	own=$(members | awk -F, '$3 == "{{.Instance.ID}}" {print $1}')
	while read -r _ clients; do
		[ -z "$clients" ] || etcd "$clients" move-leader "$own" || true
	done <<<"$replaced"
	touch /run/nstance-joined
	while [ -n "$replaced" ] && members | cut -d, -f1 | grep -qxF "$(cut -d' ' -f1 <<<"$replaced")"; do
		remove_dead_members || true
		sleep 5
	done
}

# Only the machine of the first shard may initialize the cluster, only before a time that the configuration
# names, and only if no API server responds. The others wait until they can join.
failures=0
while true; do
	if api get --raw /readyz >/dev/null 2>&1; then
		failures=0
		if remove_dead_members && is_complete; then
			join
			exit
		fi
	else
		failures=$((failures + 1))
		if [ "$failures" -ge 5 ] && [ "$(date +%s)" -lt "{{.Vars.initialize_before}}" ]; then break; fi
	fi
	sleep 1
done
