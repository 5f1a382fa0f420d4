
for file in kubernetes-ca.crt kubernetes-ca.key; do wait_for "$recv/$file"; done
for image in /images/control-plane/*.tar; do
	ctr --namespace k8s.io images import "$image" >/dev/null
done
mkdir -p /etc/kubernetes/pki
cp -L "$recv/kubernetes-ca.crt" /etc/kubernetes/pki/ca.crt
cp -L "$recv/kubernetes-ca.key" /etc/kubernetes/pki/ca.key
# Machines join with certificates of the shards.
cat /etc/kubernetes/pki/ca.crt /opt/nstance-agent/identity/ca.crt >/etc/kubernetes/pki/client-ca.crt
# The audit log has every write, and what the Pods of the operator and of Cluster API read.
cat >/etc/kubernetes/audit.yaml <<YAML
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, Panic]
rules:
  - {level: Metadata, users: ["{{.Vars.operator}}", "{{.Vars.cluster_api}}"]}
  - {level: None, verbs: [get, list, watch]}
  - {level: Metadata, omitStages: [ResponseStarted]}
YAML
