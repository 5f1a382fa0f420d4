// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/puidv7"
)

// maxUserdata is the largest userdata in bytes, before base64 encoding
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html).
const maxUserdata = 16 << 10

// packUserdata returns userdata as an instance receives it: with gzip if it is too large otherwise,
// which cloud-init unpacks
// (https://cloudinit.readthedocs.io/en/latest/explanation/format.html). The same userdata gives the
// same result, as the token of a repeated request requires.
func packUserdata(userdata []byte) ([]byte, error) {
	if len(userdata) <= maxUserdata {
		return userdata, nil
	}
	var packed bytes.Buffer
	writer, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := writer.Write(userdata); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	if packed.Len() > maxUserdata {
		return nil, fmt.Errorf("the userdata has %d bytes, and %d with gzip, at most %d are allowed", len(userdata), packed.Len(), maxUserdata)
	}
	return packed.Bytes(), nil
}

// Launch launches the instance of a request together with its tags, so no other call follows.
// EC2 returns the same instance for the same token, even after a lost response
// (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-idempotency.html).
func (a *API) Launch(ctx context.Context, r cloud.Request) (cloud.VM, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if r.Market == "" {
		r.Market = market(r.Spec)
	}
	input, err := a.input(ctx, r)
	if err != nil {
		return cloud.VM{}, err
	}
	vm := cloud.VM{ID: r.ID, Type: r.Type.Name}
	a.step("launch the instance")
	output, err := a.calls.runInstances(ctx, input)
	switch {
	case codeOf(err) == codeTokenTerminated:
		// An earlier call has launched it. Its token cannot launch another instance.
		vm.State, vm.Reason, vm.Ended = instance.Failed, "the instance was launched, and terminated since", true
		if found, exists, err := a.Find(ctx, r.ID); err == nil && exists && found.Ended {
			vm = found // it has the reason
		}
	case err != nil:
		return cloud.VM{}, fmt.Errorf("launch the instance: %w", launchError(a.shard.Zone, r.Spec, err))
	case len(output.Instances) != 1 || !instances.MatchString(awssdk.ToString(output.Instances[0].InstanceId)):
		return cloud.VM{}, fmt.Errorf("the response to the launch of instance %s has %d instances", r.ID, len(output.Instances))
	default:
		a.show(output.Instances)
		vm = a.vm(&output.Instances[0], r.ID)
		setState(&vm, &output.Instances[0], nil)
	}
	// The response to a repeated call may lack the tags.
	vm.Group, vm.Origin = r.Group, r.Origin
	a.step("return the machine")
	return vm, nil
}

// input returns the input of RunInstances for a request.
func (a *API) input(ctx context.Context, r cloud.Request) (*ec2.RunInstancesInput, error) {
	if _, err := puidv7.Parse(r.ID); err != nil {
		return nil, rejectGroup(r.Spec, err)
	}
	if !subnets.MatchString(r.Subnet) {
		return nil, &cloud.Rejection{Scope: cloud.Scope{Subnet: r.Subnet}, RetryAfter: invalidRetryAfter, Err: errNoSubnet(r.Subnet)}
	}
	userdata, err := packUserdata(r.Userdata)
	if err != nil {
		return nil, rejectGroup(r.Spec, err)
	}
	args, errs := readArguments(field.NewPath("args"), r.Args)
	if !args.hasImage() && args.launchTemplate.isEmpty() {
		args.image = a.options.Image
	}
	if len(errs) == 0 && !args.hasImage() && args.launchTemplate.isEmpty() {
		errs = append(errs, field.Required(field.NewPath("args", argImage), "neither the arguments nor the options of the provider have an image"))
	}
	if len(errs) > 0 {
		return nil, rejectGroup(r.Spec, fmt.Errorf("arguments of the provider: %w", errs.ToAggregate()))
	}
	image, err := a.image(ctx, r.Spec, args)
	if err != nil {
		return nil, err
	}
	input := &ec2.RunInstancesInput{
		ClientToken:       awssdk.String(r.Token),
		MinCount:          awssdk.Int32(1),
		MaxCount:          awssdk.Int32(1),
		InstanceType:      types.InstanceType(r.Type.Name),
		SubnetId:          awssdk.String(r.Subnet),
		SecurityGroupIds:  args.securityGroups,
		TagSpecifications: specifications(tagsOf(a.shard, r.Spec, args.tags), types.MarketType(args.market)),
		MetadataOptions:   args.metadata.request(),
		LaunchTemplate:    args.launchTemplate.specification(),
		// An instance that has shut down is replaced, and never started again.
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
	}
	if image.id != "" {
		input.ImageId = awssdk.String(image.id)
	}
	if len(userdata) > 0 {
		input.UserData = awssdk.String(base64.StdEncoding.EncodeToString(userdata))
	}
	if args.keyName != "" {
		input.KeyName = awssdk.String(args.keyName)
	}
	if args.ipv6Addresses > 0 {
		input.Ipv6AddressCount = awssdk.Int32(args.ipv6Addresses)
	}
	input.IamInstanceProfile = profile(args.instanceProfile)
	if !args.rootVolume.isEmpty() {
		input.BlockDeviceMappings = []types.BlockDeviceMapping{args.rootVolume.mapping(image.rootDevice)}
	}
	if args.market == marketSpot {
		input.InstanceMarketOptions = &types.InstanceMarketOptionsRequest{
			MarketType: types.MarketTypeSpot,
			SpotOptions: &types.SpotMarketOptions{
				SpotInstanceType:             types.SpotInstanceTypeOneTime,
				InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate,
			},
		}
		if args.spotMaxPrice != "" {
			input.InstanceMarketOptions.SpotOptions.MaxPrice = awssdk.String(args.spotMaxPrice)
		}
	}
	return input, nil
}

// market returns the market of a request, or an empty text if that is known only after
// rendering.
func market(spec provider.Spec) string { return marketArgument.Market(spec.Args) }

// imageAge is how long a found image is used without searching again. A repeated request must
// have the same image as the first one, because it has the same token.
const imageAge = 10 * time.Minute

// image is an image to launch instances from.
type image struct{ id, rootDevice string }

type cachedImage struct {
	image
	at time.Time
}

// image returns the image that the arguments name, or the newest image that matches their
// filters. It is empty if the launch template selects the image.
func (a *API) image(ctx context.Context, spec provider.Spec, args arguments) (image, error) {
	needsDevice := !args.rootVolume.isEmpty() && args.rootVolume.device == ""
	switch {
	case !args.hasImage() && needsDevice:
		return image{}, rejectGroup(spec, fmt.Errorf("the root volume needs a device, because the image is not known"))
	case !args.hasImage():
		return image{}, nil
	case args.image != "" && !needsDevice:
		return image{id: args.image}, nil
	}
	input := &ec2.DescribeImagesInput{ImageIds: []string{args.image}}
	if args.image == "" {
		input = &ec2.DescribeImagesInput{Owners: args.imageOwners, Filters: imageFilters(spec.Type.Arch, args.imageFilters)}
	}
	key := fmt.Sprint(args.image, args.imageOwners, spec.Type.Arch, args.imageFilters)
	a.mu.Lock()
	known, found := a.images[key]
	a.mu.Unlock()
	if found && time.Since(known.at) < imageAge {
		return known.image, nil
	}
	all, err := a.describeImages(ctx, input)
	switch {
	case err != nil && isRefusal(err) && !isAccess(err):
		return image{}, rejectGroup(spec, fmt.Errorf("find the image: %w", err))
	case err != nil:
		return image{}, fmt.Errorf("find the image: %w", classify(err))
	case len(all) == 0:
		return image{}, rejectGroup(spec, fmt.Errorf("no image of %s is available with %s", strings.Join(args.imageOwners, ", "), describeFilters(input.Filters)))
	}
	newest := slices.MaxFunc(all, func(x, y types.Image) int {
		// The dates have a format in which they sort by time.
		return strings.Compare(awssdk.ToString(x.CreationDate)+awssdk.ToString(x.ImageId), awssdk.ToString(y.CreationDate)+awssdk.ToString(y.ImageId))
	})
	result := image{id: awssdk.ToString(newest.ImageId), rootDevice: awssdk.ToString(newest.RootDeviceName)}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.images, func(_ string, cached cachedImage) bool { return now.Sub(cached.at) > imageAge })
	a.images[key] = cachedImage{image: result, at: now}
	return result, nil
}

// describeImages reads all pages of a list of images.
func (a *API) describeImages(ctx context.Context, input *ec2.DescribeImagesInput) ([]types.Image, error) {
	var all []types.Image
	for {
		output, err := a.calls.describeImages(ctx, input)
		if err != nil {
			return nil, err
		}
		all = append(all, output.Images...)
		if awssdk.ToString(output.NextToken) == "" {
			return all, nil
		}
		input.NextToken = output.NextToken
	}
}

// imageFilters returns the user's filters, and filters for the architecture and for available
// images.
func imageFilters(arch string, users map[string][]string) []types.Filter {
	name := types.ArchitectureValuesX8664
	if arch == provider.ArchARM64 {
		name = types.ArchitectureValuesArm64
	}
	all := []types.Filter{filter("state", string(types.ImageStateAvailable)), filter("architecture", string(name))}
	for _, key := range slices.Sorted(maps.Keys(users)) {
		all = append(all, filter(key, users[key]...))
	}
	return all
}

func describeFilters(filters []types.Filter) string {
	var texts []string
	for _, filter := range filters {
		texts = append(texts, awssdk.ToString(filter.Name)+" "+strings.Join(filter.Values, "|"))
	}
	return strings.Join(texts, ", ")
}

// Terminate terminates instances in one call.
func (a *API) Terminate(ctx context.Context, list []cloud.VM) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	errs := map[string]error{}
	byID := map[string]cloud.VM{}
	var ids []string
	for _, vm := range list {
		found, err := a.toTerminate(ctx, vm)
		if err != nil {
			errs[vm.ID] = fmt.Errorf("terminate the instance of %s: %w", vm.ID, err)
			continue
		}
		for _, id := range found {
			byID[id] = vm
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return errs
	}
	size := len(ids)
	if len(list) == 1 {
		size = 1 // the caller cannot divide a call for one VM
	}
	a.step("terminate the instance")
	report := func(id string, err error) {
		if vm := byID[id]; err != nil {
			errs[vm.ID] = fmt.Errorf("terminate instance %s of %s: %w", id, vm.ID, err)
		}
	}
	for some := range slices.Chunk(ids, size) {
		a.terminate(ctx, some, report)
	}
	a.step("return")
	return errs
}

// toTerminate returns the EC2 ids of a VM. It searches by tags if the VM has no provider id:
// then only the token has shown that it was launched. The error wraps cloud.ErrNotFound if
// EC2 does not know the VM.
func (a *API) toTerminate(ctx context.Context, vm cloud.VM) ([]string, error) {
	if vm.ProviderID != "" {
		id, err := instanceID(vm.ProviderID)
		return []string{id}, err
	}
	all, err := a.describe(ctx, append(a.filters(), filter("tag:"+tagInstanceID, vm.ID)))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, cloud.ErrNotFound
	}
	var ids []string
	for n := range all {
		if state := all[n].State; state == nil || state.Name != types.InstanceStateNameTerminated {
			ids = append(ids, awssdk.ToString(all[n].InstanceId))
		}
	}
	return ids, nil
}

// terminate terminates instances and reports the result of each. If EC2 refuses the call
// because of one instance, it terminates none.
func (a *API) terminate(ctx context.Context, ids []string, report func(id string, err error)) {
	_, err := a.calls.terminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	err = classify(err)
	isMissing := codeOf(err) == codeNotFound
	bad := mentioned(err, ids)
	for _, id := range ids {
		switch {
		case !isRefusal(err) || isAccess(err):
			report(id, err)
		case isMissing && (len(ids) == 1 || bad[id]):
			report(id, fmt.Errorf("%w: %w", cloud.ErrNotFound, err)) // or it is not visible yet
		case len(ids) == 1 || bad[id] && len(bad) < len(ids):
			report(id, fmt.Errorf("%w: %w", cloud.ErrRefused, err))
		default:
			report(id, fmt.Errorf("%w: %w", cloud.ErrRefusedTogether, err))
		}
	}
}

// mentioned returns the ids that an error contains.
func mentioned(err error, ids []string) map[string]bool {
	found := map[string]bool{}
	if err != nil {
		for _, id := range mentions.FindAllString(err.Error(), -1) {
			if slices.Contains(ids, id) {
				found[id] = true
			}
		}
	}
	return found
}

// splitNamed divides ids into the ids that an error names and the others. If the error names
// no id or all ids, it returns two halves.
func splitNamed(err error, ids []string) (bad, others []string) {
	found := mentioned(err, ids)
	for _, id := range ids {
		if found[id] {
			bad = append(bad, id)
		} else {
			others = append(others, id)
		}
	}
	if len(bad) == 0 || len(others) == 0 {
		return ids[:len(ids)/2], ids[len(ids)/2:]
	}
	return bad, others
}
