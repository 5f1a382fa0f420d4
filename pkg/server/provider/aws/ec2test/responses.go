// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ec2test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// respond writes the response of a call.
func (s *Server) respond(w http.ResponseWriter, name string, result any, err error) {
	s.mu.Lock()
	s.requestSeq++
	requestID := fmt.Sprintf("00000000-0000-0000-0000-%012d", s.requestSeq)
	s.mu.Unlock()
	status := http.StatusOK
	var document any
	if err != nil {
		refused, ok := errors.AsType[*refusal](err)
		if !ok {
			refused = &refusal{status: http.StatusInternalServerError, code: "InternalError", message: err.Error()}
		}
		status = refused.status
		document = errorResponse{Code: refused.code, Message: refused.message, RequestID: requestID}
	} else {
		document = response{
			XMLName: xml.Name{Space: "http://ec2.amazonaws.com/doc/2016-11-15/", Local: name + "Response"},
			Content: "<requestId>" + requestID + "</requestId>" + content(result),
		}
	}
	data, err := xml.Marshal(document)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "text/xml;charset=UTF-8")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), data...)) // the client may have closed the connection
}

type response struct {
	XMLName xml.Name
	Content string `xml:",innerxml"`
}

// content returns the members of a result, nil for none.
func content(result any) string {
	if result == nil {
		return ""
	}
	data, err := xml.Marshal(result)
	if err != nil {
		panic(err)
	}
	text := string(data)
	return text[strings.IndexByte(text, '>')+1 : strings.LastIndexByte(text, '<')]
}

type errorResponse struct {
	XMLName   xml.Name `xml:"Response"`
	Code      string   `xml:"Errors>Error>Code"`
	Message   string   `xml:"Errors>Error>Message"`
	RequestID string   `xml:"RequestID"`
}
