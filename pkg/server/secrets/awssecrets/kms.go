// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package awssecrets

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kms"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/deadline"
)

// kmsHints explain the codes whose messages are empty or quote the request, see
// https://docs.aws.amazon.com/kms/latest/APIReference/API_Decrypt.html.
var kmsHints = map[string]string{
	"InvalidCiphertextException":  "it was encrypted with another encryption context, or was changed",
	"IncorrectKeyException":       "another key has encrypted it",
	"NotFoundException":           "the key does not exist in this region",
	"DisabledException":           "the key is disabled",
	"KMSInvalidStateException":    "the key cannot be used, such as one that is scheduled for deletion",
	"InvalidKeyUsageException":    "the key is not one for encryption",
	"InvalidGrantTokenException":  "the grant is not valid",
	"KeyUnavailableException":     "the key is not available now",
	"DependencyTimeoutException":  "the service is not available now",
	"KMSInternalException":        "the service is not available now",
	"UnrecognizedClientException": "the credentials are not valid",
}

// DecryptKey returns the plaintext of a key. The SDK repeats requests that are throttled or
// fail. The client is a local variable, so that the linker drops methods that are never
// called.
func DecryptKey(ctx context.Context, c aws.Config, key *config.KMSKey) ([]byte, error) {
	client := kms.NewFromConfig(c, func(o *kms.Options) { o.HTTPClient = deadline.HTTPClient(o.HTTPClient.Do) })
	output, err := client.Decrypt(ctx, &kms.DecryptInput{
		CiphertextBlob:    key.Blob(),
		KeyId:             &key.KeyID,
		EncryptionContext: key.EncryptionContext(),
	})
	switch {
	case err == nil && len(output.Plaintext) == 0:
		err = errors.New("the response has no plaintext")
	case kmsHints[code(err)] != "":
		err = fmt.Errorf("%s: %s", code(err), kmsHints[code(err)])
	case err != nil:
		err = withoutValue(err)
	}
	if err != nil {
		return nil, fmt.Errorf("aws_kms: decrypt %s with encryption context %v: %w", key, key.EncryptionContext(), err)
	}
	return output.Plaintext, nil
}
