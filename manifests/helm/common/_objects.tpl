{{- /*
What the charts share. The objects of a chart are those of the kustomize bases, which are
linked in the folder "files". The templates change only what the release and its values say.
*/ -}}

{{- /* The objects of files: (dict "root" $ "files" (list PATH...)). */ -}}
{{- define "nstance.files" -}}
{{- range $file := .files }}
{{- range $text := splitList "\n---\n" ($.root.Files.Get $file) }}
---
{{ include "nstance.object" (dict "root" $.root "object" (fromYaml $text)) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* An object in the namespace of the release: (dict "root" $ "object" OBJECT). */ -}}
{{- define "nstance.object" -}}
{{- $namespace := .root.Release.Namespace }}
{{- $suffix := ternary (printf "-%s" .root.Values.nameSuffix) "" (not (empty .root.Values.nameSuffix)) }}
{{- $object := .object }}
{{- $metadata := $object.metadata }}
{{- if eq $object.kind "CustomResourceDefinition" }}
{{- /* With a kind, all of its objects are deleted: an uninstallation leaves it. */ -}}
{{- $_ := set $metadata "annotations" (merge (dict "helm.sh/resource-policy" "keep") ($metadata.annotations | default dict)) }}
{{- else if regexMatch "^(Cluster|Validating)" $object.kind }}
{{- $_ := set $metadata "name" (print $metadata.name $suffix) }}
{{- else }}
{{- $_ := set $metadata "namespace" $namespace }}
{{- end }}
{{- if hasSuffix "RoleBinding" $object.kind }}
{{- range $object.subjects }}
{{- $_ := set . "namespace" $namespace }}
{{- end }}
{{- if eq $object.roleRef.kind "ClusterRole" }}
{{- $_ := set $object.roleRef "name" (print $object.roleRef.name $suffix) }}
{{- end }}
{{- else if eq $object.kind "ValidatingWebhookConfiguration" }}
{{- range $object.webhooks }}
{{- $_ := set .clientConfig.service "namespace" $namespace }}
{{- $_ := set .namespaceSelector.matchLabels "kubernetes.io/metadata.name" $namespace }}
{{- end }}
{{- else if eq $object.kind "ValidatingAdmissionPolicy" }}
{{- $selector := $object.spec.matchConstraints.namespaceSelector }}
{{- if $selector.matchLabels }}
{{- $_ := set $selector.matchLabels "kubernetes.io/metadata.name" $namespace }}
{{- end }}
{{- range $selector.matchExpressions }}
{{- if eq .key "kubernetes.io/metadata.name" }}
{{- $_ := set . "values" (list $namespace) }}
{{- end }}
{{- end }}
{{- else if eq $object.kind "ValidatingAdmissionPolicyBinding" }}
{{- $_ := set $object.spec "policyName" (print $object.spec.policyName $suffix) }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{- /* Sets what values say of a Deployment: (dict "root" $ "deployment" DEPLOYMENT). */ -}}
{{- define "nstance.deployment" -}}
{{- $values := .root.Values }}
{{- $spec := .deployment.spec }}
{{- $pod := $spec.template.spec }}
{{- $container := first $pod.containers }}
{{- if hasKey $values "replicas" }}
{{- $_ := set $spec "replicas" $values.replicas }}
{{- end }}
{{- $tag := $values.image.tag | default .root.Chart.AppVersion }}
{{- $version := ternary (print "@" $values.image.digest) (print ":" $tag) (not (empty $values.image.digest)) }}
{{- $_ := set $container "image" (print $values.image.repository $version) }}
{{- $_ := set $container "resources" $values.resources }}
{{- range $name, $value := $values.env }}
{{- $_ := set $container "env" (append ($container.env | default list) (dict "name" $name "value" $value)) }}
{{- end }}
{{- $_ := unset $pod "priorityClassName" }}
{{- range $name := list "priorityClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with get $values $name }}
{{- $_ := set $pod $name . }}
{{- end }}
{{- end }}
{{- with $values.image.pullSecrets }}
{{- $secrets := list }}
{{- range . }}
{{- $secrets = append $secrets (dict "name" .) }}
{{- end }}
{{- $_ := set $pod "imagePullSecrets" $secrets }}
{{- end }}
{{- end }}
