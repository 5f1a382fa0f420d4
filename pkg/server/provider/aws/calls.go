// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
)

// call is one of the calls of the SDK.
type call[Input, Output any] func(context.Context, *Input, ...func(*ec2.Options)) (*Output, error)

// calls are those that the provider makes. There is no *ec2.Client in a type that is
// converted to an interface, neither directly nor in a field: the linker would keep the
// hundreds of calls of the SDK, which are 30 MB.
type calls struct {
	runInstances           call[ec2.RunInstancesInput, ec2.RunInstancesOutput]
	terminateInstances     call[ec2.TerminateInstancesInput, ec2.TerminateInstancesOutput]
	describeInstances      call[ec2.DescribeInstancesInput, ec2.DescribeInstancesOutput]
	describeInstanceStatus call[ec2.DescribeInstanceStatusInput, ec2.DescribeInstanceStatusOutput]
	describeSubnets        call[ec2.DescribeSubnetsInput, ec2.DescribeSubnetsOutput]
	describeImages         call[ec2.DescribeImagesInput, ec2.DescribeImagesOutput]

	describeNetworkInterfaces call[ec2.DescribeNetworkInterfacesInput, ec2.DescribeNetworkInterfacesOutput]
	attachNetworkInterface    call[ec2.AttachNetworkInterfaceInput, ec2.AttachNetworkInterfaceOutput]
	detachNetworkInterface    call[ec2.DetachNetworkInterfaceInput, ec2.DetachNetworkInterfaceOutput]
}

func callsOf(client *ec2.Client) calls {
	return calls{
		runInstances:           client.RunInstances,
		terminateInstances:     client.TerminateInstances,
		describeInstances:      client.DescribeInstances,
		describeInstanceStatus: client.DescribeInstanceStatus,
		describeSubnets:        client.DescribeSubnets,
		describeImages:         client.DescribeImages,

		describeNetworkInterfaces: client.DescribeNetworkInterfaces,
		attachNetworkInterface:    client.AttachNetworkInterface,
		detachNetworkInterface:    client.DetachNetworkInterface,
	}
}
