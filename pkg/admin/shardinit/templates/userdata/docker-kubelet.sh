
mkdir -p /etc/kubernetes/pki
base64 -d >/etc/kubernetes/pki/ca.crt <<'CA'
{{.Vars.kubernetes_ca}}
CA
# The agent receives the file when it has registered: join-secret.sh stores it.
ln -s /opt/nstance-agent/recv/join.json /etc/kubernetes/bootstrap.conf
labels={{shellQuote (print $labels ",node.kubernetes.io/instance-type=" .Instance.Type ",topology.kubernetes.io/region=" .Provider.Region ",topology.kubernetes.io/zone=" .Provider.Zone)}}
taints={{shellQuote (.Node.TaintsArg (index .Vars "taints"))}}
# A space would begin another flag.
case $labels$taints in *[[:space:]]*)
	echo "labels and taints must have no spaces" >&2
	exit 1
	;;
esac
printf 'KUBELET_FLAGS=%q\n' "--provider-id=$NSTANCE_PROVIDER_ID --node-labels=$labels${taints:+ --register-with-taints=$taints}{{with .Node.MaxPods}} --max-pods={{.}}{{end}}" >/etc/kubernetes/kubelet.env
