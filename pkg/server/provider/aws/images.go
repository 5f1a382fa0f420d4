// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"nstance.dev/operator/pkg/server/provider"
)

// imageAge is how long an image that was found is not searched again. A repeated request
// has the same image as the first one.
const imageAge = 10 * time.Minute

// image is an image that instances are launched from.
type image struct{ id, rootDevice string }

type cachedImage struct {
	image
	at time.Time
}

// image returns the image of a request: the one that the arguments name, or the newest one
// that they describe. It is empty if the launch template has it.
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
		// The dates are texts in a form that sorts by time.
		return strings.Compare(awssdk.ToString(x.CreationDate)+awssdk.ToString(x.ImageId), awssdk.ToString(y.CreationDate)+awssdk.ToString(y.ImageId))
	})
	result := image{id: awssdk.ToString(newest.ImageId), rootDevice: awssdk.ToString(newest.RootDeviceName)}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.images, func(_ string, one cachedImage) bool { return now.Sub(one.at) > imageAge })
	a.images[key] = cachedImage{image: result, at: now}
	return result, nil
}

// describeImages returns all images of a request.
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

// imageFilters returns filters of images that can be launched with an architecture.
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
	for _, one := range filters {
		texts = append(texts, awssdk.ToString(one.Name)+" "+strings.Join(one.Values, "|"))
	}
	return strings.Join(texts, ", ")
}
