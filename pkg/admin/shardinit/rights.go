// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardinit

import "nstance.dev/operator/pkg/server/storage/backend"

// serverRole and nodeRole are the names of the roles of IAM, one of each for all shards.
func serverRole(v values) string { return "nstance-" + v["cluster-id"] + "-server" }
func nodeRole(v values) string   { return "nstance-" + v["cluster-id"] + "-node" }

// object is JSON.
type object = map[string]any

func allow(actions []string, resource any, condition ...object) object {
	statement := object{"Effect": "Allow", "Action": actions, "Resource": resource}
	if len(condition) > 0 {
		statement["Condition"] = object{"StringEquals": condition[0]}
	}
	return statement
}

// stackPolicies are the policies of the role of the servers.
type stackPolicies struct{ machines, storage object }

// newPolicies returns the policies of docs/aws.md#permissions. The id with the prefix "check--" is
// the cluster of provider check.
func newPolicies(cluster, bucket string) stackPolicies {
	policy := func(statements ...object) object { return object{"Version": "2012-10-17", "Statement": statements} }
	return stackPolicies{
		machines: policy(
			allow([]string{
				"ec2:DescribeImages", "ec2:DescribeInstanceStatus", "ec2:DescribeInstances", "ec2:DescribeNetworkInterfaces",
				"ec2:DescribeSubnets", "ec2:RunInstances", "elasticloadbalancing:DescribeTargetHealth",
			}, "*"),
			allow([]string{"ec2:CreateTags"}, "arn:aws:ec2:*:*:*/*", object{"ec2:CreateAction": "RunInstances"}),
			allow([]string{"ec2:TerminateInstances"}, "arn:aws:ec2:*:*:instance/*",
				object{"aws:ResourceTag/nstance:cluster-id": []string{cluster, "check--" + cluster}}),
			allow([]string{"iam:PassRole"}, object{"Fn::GetAtt": []string{"NodeRole", "Arn"}}, object{"iam:PassedToService": "ec2.amazonaws.com"}),
		),
		storage: policy(
			allow([]string{"s3:DeleteObject", "s3:GetObject", "s3:PutObject"}, "arn:aws:s3:::"+bucket+"/*"),
			allow([]string{"s3:ListBucket"}, "arn:aws:s3:::"+bucket),
		),
	}
}

// newStack returns the CloudFormation template with the roles of servers and machines and the
// bucket, for all shards of a cluster. The bucket stays when the stack is deleted.
func newStack(d *document) object {
	names := values{"cluster-id": d.V["cluster"]}
	policies := newPolicies(d.V["cluster"], d.V["bucket"])
	trust := object{"Version": "2012-10-17", "Statement": []object{{
		"Effect": "Allow", "Principal": object{"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole",
	}}}
	role := func(name string, managed []string, inline ...object) object {
		properties := object{"RoleName": name, "AssumeRolePolicyDocument": trust}
		if len(managed) > 0 {
			properties["ManagedPolicyArns"] = managed
		}
		if len(inline) > 0 {
			properties["Policies"] = inline
		}
		return object{"Type": "AWS::IAM::Role", "Properties": properties}
	}
	profile := func(name, role string) object {
		return object{"Type": "AWS::IAM::InstanceProfile", "Properties": object{"InstanceProfileName": name, "Roles": []object{{"Ref": role}}}}
	}
	inline := []object{{"PolicyName": "machines", "PolicyDocument": policies.machines}}
	if d.V["storage"] == backend.S3 {
		inline = append(inline, object{"PolicyName": "storage", "PolicyDocument": policies.storage})
	}
	var nodePolicies []string
	if d.join == joinEKS {
		// https://docs.aws.amazon.com/eks/latest/userguide/create-node-role.html
		for _, name := range []string{"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonEKS_CNI_Policy"} {
			nodePolicies = append(nodePolicies, "arn:aws:iam::aws:policy/"+name)
		}
	}
	resources := object{
		// Session Manager is a way onto the machine of a server without a key pair
		// (https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager.html).
		"ServerRole":    role(serverRole(names), []string{"arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"}, inline...),
		"ServerProfile": profile(serverRole(names), "ServerRole"),
		"NodeRole":      role(nodeRole(names), nodePolicies),
		"NodeProfile":   profile(nodeRole(names), "NodeRole"),
	}
	stack := object{
		"AWSTemplateFormatVersion": "2010-09-09",
		"Description":              "Roles and bucket of the Nstance cluster " + d.V["cluster"],
		"Resources":                resources,
	}
	if d.V["storage"] == backend.S3 {
		stack["Parameters"] = object{"CreateBucket": object{
			"Type": "String", "Default": "true", "AllowedValues": []string{"true", "false"}, "Description": "false if the bucket exists",
		}}
		stack["Conditions"] = object{"CreatesBucket": object{"Fn::Equals": []any{object{"Ref": "CreateBucket"}, "true"}}}
		resources["Bucket"] = object{
			"Type": "AWS::S3::Bucket", "Condition": "CreatesBucket", "DeletionPolicy": "Retain", "UpdateReplacePolicy": "Retain",
			"Properties": object{
				"BucketName": d.V["bucket"],
				// A restore needs versions (docs/runbooks/backup-and-restore.md#restore-the-storage-of-the-servers).
				"VersioningConfiguration": object{"Status": "Enabled"},
				"PublicAccessBlockConfiguration": object{
					"BlockPublicAcls": true, "BlockPublicPolicy": true, "IgnorePublicAcls": true, "RestrictPublicBuckets": true,
				},
			},
		}
	}
	return stack
}

// machinePermissions are the permissions in docs/google.md#permissions.
var machinePermissions = []string{
	"compute.instances.create", "compute.instances.setLabels", "compute.instances.setMetadata", "compute.instances.setServiceAccount",
	"compute.instances.setTags", "compute.disks.create", "compute.disks.setLabels", "compute.images.useReadOnly",
	"compute.instanceTemplates.useReadOnly", "compute.subnetworks.use", "compute.subnetworks.useExternalIp", "compute.instances.get",
	"compute.instances.list", "compute.instances.delete", "compute.instances.updateNetworkInterface", "compute.instances.use",
	"compute.networkEndpointGroups.attachNetworkEndpoints", "compute.networkEndpointGroups.detachNetworkEndpoints",
	"compute.networkEndpointGroups.get", "compute.zoneOperations.get", "compute.zoneOperations.list", "compute.subnetworks.get",
}

// objectPermissions are the permissions in docs/server-reference.md#google-cloud-storage.
var objectPermissions = []string{"storage.objects.get", "storage.objects.create", "storage.objects.delete", "storage.objects.list"}
