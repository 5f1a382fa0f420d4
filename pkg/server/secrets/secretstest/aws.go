// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/ratelimit"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
)

const (
	awsRegion    = "us-east-1"
	awsAccessKey = "AKIATEST"
)

// AWSConfig returns the configuration of clients of a service at an address. They repeat
// requests without a delay.
func AWSConfig(url string) aws.Config {
	return aws.Config{
		Region:       awsRegion,
		BaseEndpoint: &url,
		Credentials:  credentials.NewStaticCredentialsProvider(awsAccessKey, "secret", ""),
		Retryer: func() aws.Retryer {
			return retry.NewStandard(func(o *retry.StandardOptions) {
				o.MaxBackoff, o.RateLimiter = time.Millisecond, ratelimit.None
			})
		},
	}
}

// awsError is an error of a service of AWS.
type awsError struct {
	status        int
	code, message string
}

func (e *awsError) Error() string { return e.code + ": " + e.message }

func rejected(code, format string, args ...any) error {
	return &awsError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// awsService speaks the protocol JSON 1.1 of AWS.
type awsService struct {
	// target begins the name of an operation in the header, and name is that of the service
	// in signatures.
	target, name string
	operations   map[string]func(body []byte) (any, error)
}

func (s *awsService) serve(request *http.Request, body []byte) response {
	result, err := s.call(request, body)
	if err != nil {
		return respondAWS(nil, err)
	}
	return respondAWS(result, nil)
}

func (s *awsService) call(request *http.Request, body []byte) (any, error) {
	scope := fmt.Sprintf("/%s/%s/aws4_request", awsRegion, s.name)
	authorization := request.Header.Get("Authorization")
	if !strings.HasPrefix(authorization, "AWS4-HMAC-SHA256 Credential="+awsAccessKey+"/") || !strings.Contains(authorization, scope) {
		return nil, rejected("InvalidSignatureException", "the scope is not %s", scope)
	}
	operation, isOurs := strings.CutPrefix(request.Header.Get("X-Amz-Target"), s.target+".")
	do := s.operations[operation]
	if request.Method != http.MethodPost || request.URL.Path != "/" || request.Header.Get("Content-Type") != "application/x-amz-json-1.1" || !isOurs || do == nil {
		return nil, rejected("UnknownOperationException", "%s %s", request.Method, request.Header.Get("X-Amz-Target"))
	}
	return do(body)
}

func (s *awsService) permission(request *http.Request) string {
	operation := request.Header.Get("X-Amz-Target")
	return s.name + ":" + operation[strings.LastIndexByte(operation, '.')+1:]
}

func (s *awsService) fail(kind Kind, body []byte) response {
	switch kind {
	case Throttled:
		return respondAWS(nil, rejected("ThrottlingException", "Rate exceeded"))
	case Denied:
		return respondAWS(nil, rejected("AccessDeniedException", "User: arn:aws:iam::1:user/a is not authorized"))
	case Quoting:
		return respondAWS(nil, rejected("ValidationException", "%s", quote(body)))
	}
	return respondAWS(nil, &awsError{http.StatusInternalServerError, "InternalServiceError", "internal error"})
}

func respondAWS(result any, err error) response {
	got := response{code: http.StatusOK, contentType: "application/x-amz-json-1.1", header: http.Header{"X-Amzn-Requestid": {"1"}}}
	if failed, ok := errors.AsType[*awsError](err); ok {
		got.code = failed.status
		result = map[string]string{"__type": failed.code, "message": failed.message}
	}
	got.body, _ = json.Marshal(result)
	return got
}

// decodeAWS reads a request, and rejects members that are not known.
func decodeAWS(body []byte, request any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(request); err != nil {
		return rejected("SerializationException", "%v", err)
	}
	return nil
}

// page returns a part of a list of count entries, as its begin and end, and the token of the
// next one.
func page(t testing.TB, token string, count, size int) (begin, end int, next string) {
	t.Helper()
	if token != "" {
		if _, err := fmt.Sscanf(token, "from-%d", &begin); err != nil {
			t.Errorf("page token %q: %v", token, err)
		}
	}
	if end = begin + size; end < count {
		return begin, end, fmt.Sprintf("from-%d", end)
	}
	return begin, count, ""
}
