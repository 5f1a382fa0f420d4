// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
	// target begins the name of an operation in the header, and name is the name of the
	// service in signatures.
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

// decodeAWS decodes a request, and rejects unknown members.
func decodeAWS(body []byte, request any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(request); err != nil {
		return rejected("SerializationException", "%v", err)
	}
	return nil
}

// page returns a part of a list of count entries, as its begin and end, and the token of the
// next page.
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

// secretsManager responds as AWS Secrets Manager does.
type secretsManager struct {
	t       testing.TB
	secrets map[string]*managedSecret
	// deleting has the names of the secrets whose deletion is in progress: it is asynchronous, and
	// the first attempts to use the name again fail
	// (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_DeleteSecret.html).
	deleting map[string]int
}

// deletionAttempts is how many times a name is refused after its secret was deleted.
const deletionAttempts = 2

type managedSecret struct {
	binary []byte
	text   *string
	// token is the token of the request that has created the secret.
	token string
}

// StartSecretsManager starts a server that responds like AWS Secrets Manager, for the
// operations that the product needs. It stops with the test.
func StartSecretsManager(t testing.TB) (url string, faults *Faults) {
	t.Helper()
	s := &secretsManager{t: t, secrets: map[string]*managedSecret{}, deleting: map[string]int{}}
	return start(t, &awsService{target: "secretsmanager", name: "secretsmanager", operations: map[string]func([]byte) (any, error){
		"GetSecretValue": s.get, "CreateSecret": s.create, "PutSecretValue": s.put, "DeleteSecret": s.remove, "ListSecrets": s.list,
	}})
}

const (
	resourceNotFound = "ResourceNotFoundException"
	resourceExists   = "ResourceExistsException"
	invalidParameter = "InvalidParameterException"
)

var managedNames = regexp.MustCompile(`^[A-Za-z0-9/_+=.@-]{1,512}$`)

func (s *secretsManager) get(body []byte) (any, error) {
	var request struct{ SecretId string }
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	secret, found := s.secrets[request.SecretId]
	if !found {
		return nil, rejected(resourceNotFound, "Secrets Manager can't find the specified secret.")
	}
	response := map[string]any{"Name": request.SecretId, "ARN": "arn:aws:secretsmanager:us-east-1:1:secret:" + request.SecretId + "-AbCdEf"}
	if secret.text != nil {
		response["SecretString"] = *secret.text
	} else {
		response["SecretBinary"] = secret.binary
	}
	return response, nil
}

func (s *secretsManager) create(body []byte) (any, error) {
	var request struct {
		Name, ClientRequestToken string
		SecretBinary             []byte
		SecretString             *string
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	switch {
	case !managedNames.MatchString(request.Name) || len(request.ClientRequestToken) < 32:
		return nil, rejected(invalidParameter, "Invalid name or token.")
	case len(request.SecretBinary) > 65536 || len(request.SecretBinary) == 0 && request.SecretString == nil:
		return nil, rejected(invalidParameter, "Invalid value.")
	}
	if s.deleting[request.Name] > 0 {
		s.deleting[request.Name]--
		return nil, rejected("InvalidRequestException", "You can't create this secret because a secret with this name is already scheduled for deletion.")
	}
	if former, found := s.secrets[request.Name]; found {
		if former.token != request.ClientRequestToken || !bytes.Equal(former.binary, request.SecretBinary) {
			return nil, rejected(resourceExists, "The operation failed because the secret %s already exists.", request.Name)
		}
	} else {
		s.secrets[request.Name] = &managedSecret{binary: request.SecretBinary, text: request.SecretString, token: request.ClientRequestToken}
	}
	return map[string]any{"Name": request.Name, "VersionId": request.ClientRequestToken}, nil
}

func (s *secretsManager) put(body []byte) (any, error) {
	var request struct {
		SecretId, ClientRequestToken string
		SecretBinary                 []byte
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	secret, found := s.secrets[request.SecretId]
	if !found {
		return nil, rejected(resourceNotFound, "Secrets Manager can't find the specified secret.")
	}
	secret.binary, secret.text = request.SecretBinary, nil
	return map[string]any{"Name": request.SecretId, "VersionId": request.ClientRequestToken}, nil
}

// remove accepts a secret that does not exist, as the service does.
func (s *secretsManager) remove(body []byte) (any, error) {
	var request struct {
		SecretId                   string
		ForceDeleteWithoutRecovery bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	if !request.ForceDeleteWithoutRecovery {
		s.t.Error("a secret was deleted such that its name cannot be used")
	}
	if s.secrets[request.SecretId] != nil {
		s.deleting[request.SecretId] = deletionAttempts
	}
	delete(s.secrets, request.SecretId)
	return map[string]any{"Name": request.SecretId}, nil
}

// list filters by the begin of the name, in pages of 10
// (https://docs.aws.amazon.com/secretsmanager/latest/apireference/API_Filter.html).
func (s *secretsManager) list(body []byte) (any, error) {
	var request struct {
		Filters []struct {
			Key    string
			Values []string
		}
		MaxResults int
		NextToken  string
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	if request.MaxResults < 1 || request.MaxResults > 100 || len(request.Filters) != 1 || request.Filters[0].Key != "name" || len(request.Filters[0].Values) != 1 {
		return nil, rejected(invalidParameter, "Invalid filter.")
	}
	prefix := request.Filters[0].Values[0]
	var list []map[string]any
	for _, name := range slices.Sorted(maps.Keys(s.secrets)) {
		if strings.HasPrefix(name, prefix) {
			list = append(list, map[string]any{"Name": name})
		}
	}
	begin, end, next := page(s.t, request.NextToken, len(list), 10)
	response := map[string]any{"SecretList": list[begin:end]}
	if next != "" {
		response["NextToken"] = next
	}
	return response, nil
}

// parameterStore responds as AWS Systems Manager does for parameters.
type parameterStore struct {
	t          testing.TB
	parameters map[string]string
}

// StartParameterStore starts a server that responds like AWS Parameter Store, for the
// operations that the product needs. It stops with the test.
func StartParameterStore(t testing.TB) (url string, faults *Faults) {
	t.Helper()
	s := &parameterStore{t: t, parameters: map[string]string{}}
	return start(t, &awsService{target: "AmazonSSM", name: "ssm", operations: map[string]func([]byte) (any, error){
		"GetParameter": s.get, "PutParameter": s.put, "DeleteParameter": s.remove, "GetParametersByPath": s.list,
	}})
}

const (
	parameterNotFound = "ParameterNotFound"
	validation        = "ValidationException"
)

var parameterNames = regexp.MustCompile(`^(/[A-Za-z0-9_.-]+){1,15}$`)

func (s *parameterStore) get(body []byte) (any, error) {
	var request struct {
		Name           string
		WithDecryption bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	value, found := s.parameters[request.Name]
	if !found {
		return nil, rejected(parameterNotFound, "")
	}
	if !request.WithDecryption {
		value = "AQICAHencrypted"
	}
	return map[string]any{"Parameter": map[string]any{"Name": request.Name, "Type": "SecureString", "Value": value}}, nil
}

func (s *parameterStore) put(body []byte) (any, error) {
	var request struct {
		Name, Value, Type, Tier string
		Overwrite               bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	switch {
	case !parameterNames.MatchString(request.Name) || strings.HasPrefix(request.Name, "/aws") || strings.HasPrefix(request.Name, "/ssm"):
		return nil, rejected(validation, "Parameter name: %s", request.Name)
	case request.Type != "SecureString" || request.Tier != "Standard":
		return nil, rejected(validation, "the test expects a SecureString of tier Standard")
	case request.Value == "" || len(request.Value) > 4096 || !utf8.ValidString(request.Value):
		return nil, rejected(validation, "Standard tier parameters support a maximum parameter value of 4096 characters.")
	}
	if _, exists := s.parameters[request.Name]; exists && !request.Overwrite {
		return nil, rejected("ParameterAlreadyExists", "The parameter already exists.")
	}
	s.parameters[request.Name] = request.Value
	return map[string]any{"Version": 1, "Tier": "Standard"}, nil
}

func (s *parameterStore) remove(body []byte) (any, error) {
	var request struct{ Name string }
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	if _, found := s.parameters[request.Name]; !found {
		return nil, rejected(parameterNotFound, "")
	}
	delete(s.parameters, request.Name)
	return map[string]any{}, nil
}

func (s *parameterStore) list(body []byte) (any, error) {
	var request struct {
		Path, NextToken string
		Recursive       bool
		WithDecryption  bool
	}
	if err := decodeAWS(body, &request); err != nil {
		return nil, err
	}
	if !parameterNames.MatchString(request.Path) {
		return nil, rejected(validation, "The parameter path must be prefixed with \"/\" and not end with it: %s", request.Path)
	}
	if request.WithDecryption {
		s.t.Error("a list decrypts the values")
	}
	var list []map[string]any
	for _, name := range slices.Sorted(maps.Keys(s.parameters)) {
		if below, isBelow := strings.CutPrefix(name, request.Path+"/"); isBelow && (request.Recursive || !strings.Contains(below, "/")) {
			list = append(list, map[string]any{"Name": name, "Type": "SecureString", "Value": "AQICAHencrypted"})
		}
	}
	begin, end, next := page(s.t, request.NextToken, len(list), 10)
	response := map[string]any{"Parameters": list[begin:end]}
	if next != "" {
		response["NextToken"] = next
	}
	return response, nil
}
