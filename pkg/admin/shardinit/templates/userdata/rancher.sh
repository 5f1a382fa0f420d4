
# The agent receives address and token when it has registered: join-secret.sh stores them.
until [ -s /opt/nstance-agent/recv/join.json ]; do sleep 1; done
mkdir -p /etc/rancher/DISTRIBUTION/config.yaml.d
# JSON is YAML.
cp /opt/nstance-agent/recv/join.json /etc/rancher/DISTRIBUTION/config.yaml.d/join.yaml
cat >/etc/rancher/DISTRIBUTION/config.yaml <<'YAML'
# A machine that gets the address of an earlier one must not have its name as well
# (https://docs.k3s.io/architecture#how-agent-node-registration-works).
node-name: {{toJSON .Instance.ID}}
kubelet-arg:
  # The operator finds the Node by it. Without the argument the Node would have another one.
  - {{toJSON (print "provider-id=" $id)}}
  - {{toJSON (print "node-labels=" $labels ",node.kubernetes.io/instance-type=" .Instance.Type ",topology.kubernetes.io/region=" .Provider.Region ",topology.kubernetes.io/zone=" .Provider.Zone)}}
{{- with .Node.TaintsArg (index .Vars "taints")}}
  - {{toJSON (print "register-with-taints=" .)}}
{{- end}}
{{- with .Node.MaxPods}}
  - {{toJSON (print "max-pods=" .)}}
{{- end}}
YAML
{{- if eq .Provider.Kind "aws"}}
metadata=http://169.254.169.254/latest
token=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' $metadata/api/token)
instance=$(curl -sSf -H "X-aws-ec2-metadata-token: $token" $metadata/meta-data/instance-id)
sed -i "s|/INSTANCE\"$|/$instance\"|" /etc/rancher/DISTRIBUTION/config.yaml
{{- end}}
{{- with index .Vars "k3s_url"}}
if [ ! -x /usr/local/bin/k3s ]; then
	curl -fsSL --retry 10 --retry-all-errors -o /usr/local/bin/k3s.new {{shellQuote .}}
	echo {{shellQuote (print (index $.Vars "k3s_sha256") "  /usr/local/bin/k3s.new")}} | sha256sum -c -
	chmod 0755 /usr/local/bin/k3s.new
	mv /usr/local/bin/k3s.new /usr/local/bin/k3s
	cat >/etc/systemd/system/k3s-agent.service <<'UNIT'
[Unit]
Description=k3s agent
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/k3s agent
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
UNIT
	systemctl daemon-reload
fi
{{- end}}
systemctl enable --now DISTRIBUTION-agent.service
