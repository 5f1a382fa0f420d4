
wait_for $recv/join.json
# Without a token, the kubeconfig names a certificate of the machine itself, for the name of its Node: it can
# become no other Node, and there is no secret.
if grep -q $recv/bootstrap.crt $recv/join.json; then wait_for $recv/bootstrap.crt; fi
{
	cat <<YAML
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {file: {kubeConfigPath: $recv/join.json}}
timeouts: {discovery: 1m0s, tlsBootstrap: 1m0s}
YAML
	registration
} >/etc/kubernetes/kubeadm.yaml
# The control plane boots beside this machine.
until kubeadm join --config /etc/kubernetes/kubeadm.yaml; do
	echo "$(date +%T) kubeadm join failed"
	rm -f /etc/kubernetes/kubelet.conf /etc/kubernetes/bootstrap-kubelet.conf /etc/kubernetes/pki/ca.crt
	sleep 2
done
touch /run/nstance-joined
