// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// secretsManager responds as AWS Secrets Manager does.
type secretsManager struct {
	t       testing.TB
	secrets map[string]*managedSecret
}

type managedSecret struct {
	binary []byte
	text   *string
	// token is that of the request that has created the secret.
	token string
}

// StartSecretsManager starts a server that responds as AWS Secrets Manager does, for the
// operations that the product needs. It stops with the test.
func StartSecretsManager(t testing.TB) (url string, faults *Faults) {
	t.Helper()
	s := &secretsManager{t: t, secrets: map[string]*managedSecret{}}
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
	delete(s.secrets, request.SecretId)
	return map[string]any{"Name": request.SecretId}, nil
}

// list filters without regard to upper and lower case, in pages of 10.
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
	prefix := strings.ToLower(request.Filters[0].Values[0])
	var list []map[string]any
	for _, name := range slices.Sorted(maps.Keys(s.secrets)) {
		if strings.HasPrefix(strings.ToLower(name), prefix) {
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
