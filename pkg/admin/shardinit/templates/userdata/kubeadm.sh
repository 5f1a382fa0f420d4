
# The agent receives what the machine joins with when it has registered.
until [ -s /opt/nstance-agent/recv/join.json ]; do sleep 1; done
WAIT_FOR_CERTIFICATE
mkdir -p /etc/kubernetes
cat >/etc/kubernetes/join.yaml <<'YAML'
apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  file:
    kubeConfigPath: /opt/nstance-agent/recv/join.json
nodeRegistration:
NAME_OF_THE_NODE
  kubeletExtraArgs:
    # The operator finds the Node by it.
    - name: provider-id
      value: {{toJSON $id}}
    - name: node-labels
      value: {{toJSON (print $labels ",node.kubernetes.io/instance-type=" .Instance.Type ",topology.kubernetes.io/region=" .Provider.Region ",topology.kubernetes.io/zone=" .Provider.Zone)}}
{{- with .Node.TaintsArg (index .Vars "taints")}}
    - name: register-with-taints
      value: {{toJSON .}}
{{- end}}
{{- with .Node.MaxPods}}
    - name: max-pods
      value: {{toJSON .}}
{{- end}}
YAML
{{- if eq .Provider.Kind "aws"}}
metadata=http://169.254.169.254/latest
token=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' $metadata/api/token)
instance=$(curl -sSf -H "X-aws-ec2-metadata-token: $token" $metadata/meta-data/instance-id)
sed -i "s|/INSTANCE\"$|/$instance\"|" /etc/kubernetes/join.yaml
{{- end}}
kubeadm join --config /etc/kubernetes/join.yaml
# Until then the instance is coming up, and nothing is replaced by it.
touch /run/nstance-joined
