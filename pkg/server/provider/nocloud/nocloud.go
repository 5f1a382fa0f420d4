// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nocloud makes disks with userdata for the NoCloud data source of cloud-init
// (https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html). It writes
// the ISO 9660 file system itself: unlike libraries, it keeps hyphens in names, which NoCloud
// needs, and writes no temporary files.
package nocloud

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// label is the volume label by which cloud-init recognizes the disk.
const label = "cidata"

// New returns the image of a disk for an instance. The id is also its host name.
func New(id string, userdata []byte) ([]byte, error) {
	metadata, err := json.Marshal(map[string]string{"instance-id": id, "local-hostname": id})
	if err != nil {
		return nil, err
	}
	return newISO9660(label, map[string][]byte{"meta-data": metadata, "user-data": userdata})
}

// The layout of the image, in sectors. ECMA-119, the standard of ISO 9660, reserves the first
// 16 sectors for the system and puts the volume descriptors behind them
// (https://ecma-international.org/publications-and-standards/standards/ecma-119/). Numbers in
// brackets refer to its sections.
const (
	sectorSize = 2048

	volumeSector = 15 + iota // 16
	terminatorSector
	littlePathSector // path table in little-endian byte order
	bigPathSector    // path table in big-endian byte order
	rootSector
	firstFileSector
)

// pathTableSize is the size of a path table that contains only the root directory [9.4].
const pathTableSize = 10

// Offsets in the primary volume descriptor [8.4].
const (
	volumeSystemID       = 8
	volumeID             = 40
	volumeSpaceSize      = 80 // in sectors
	volumeSetSize        = 120
	volumeSequenceNumber = 124
	volumeBlockSize      = 128
	volumePathTableSize  = 132
	volumeLittlePath     = 140
	volumeBigPath        = 148
	volumeRoot           = 156 // the record of the root directory
	volumeNames          = 190 // four identifiers of 128 bytes and three of 37 bytes
	volumeDates          = 813 // four dates of 17 bytes
	volumeVersion        = 881

	volumeIDLength = 32
)

// Offsets in a directory record [9.1].
const (
	recordLength         = 0
	recordLocation       = 2 // the first sector of the content
	recordDataLength     = 10
	recordDate           = 18
	recordFlags          = 25
	recordSequenceNumber = 28
	recordNameLength     = 32
	recordName           = 33

	flagDirectory = 1 << 1
)

// The names of the first two records of a directory, itself and its parent [7.6.2].
const (
	nameSelf   = "\x00"
	nameParent = "\x01"
)

// newISO9660 returns a file system with a label and with files in its root directory, by
// name. Linux shows names in lower case.
func newISO9660(label string, files map[string][]byte) ([]byte, error) {
	if len(label) > volumeIDLength {
		return nil, fmt.Errorf("label %q is longer than %d characters", label, volumeIDLength)
	}
	root := append(directoryRecord(nameSelf), directoryRecord(nameParent)...)
	var content bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name == "" || len(name) > 28 || strings.ContainsAny(name, "/;") {
			return nil, fmt.Errorf("%q cannot be the name of a file", name)
		}
		sector := firstFileSector + content.Len()/sectorSize
		root = append(root, record(strings.ToUpper(name)+".;1", sector, len(files[name]), 0)...)
		content.Write(files[name])
		content.Write(make([]byte, -content.Len()&(sectorSize-1)))
	}
	if len(root) > sectorSize {
		return nil, fmt.Errorf("%d files are too many", len(files))
	}
	image := make([]byte, firstFileSector*sectorSize, firstFileSector*sectorSize+content.Len())
	sectors := firstFileSector + content.Len()/sectorSize
	copy(image[volumeSector*sectorSize:], volumeDescriptor(label, sectors))
	copy(image[terminatorSector*sectorSize:], "\xffCD001\x01")
	copy(image[littlePathSector*sectorSize:], pathTable(binary.LittleEndian))
	copy(image[bigPathSector*sectorSize:], pathTable(binary.BigEndian))
	copy(image[rootSector*sectorSize:], root)
	return append(image, content.Bytes()...), nil
}

// volumeDescriptor returns the primary volume descriptor.
func volumeDescriptor(label string, sectors int) []byte {
	v := make([]byte, sectorSize)
	copy(v, "\x01CD001\x01")
	putText := func(offset, length int, text string) {
		copy(v[offset:offset+length], text+strings.Repeat(" ", length-len(text)))
	}
	putText(volumeSystemID, volumeIDLength, "")
	putText(volumeID, volumeIDLength, label)
	copy(v[volumeSpaceSize:], both32(sectors))
	copy(v[volumeSetSize:], both16(1))
	copy(v[volumeSequenceNumber:], both16(1))
	copy(v[volumeBlockSize:], both16(sectorSize))
	copy(v[volumePathTableSize:], both32(pathTableSize))
	binary.LittleEndian.PutUint32(v[volumeLittlePath:], littlePathSector)
	binary.BigEndian.PutUint32(v[volumeBigPath:], bigPathSector)
	copy(v[volumeRoot:], directoryRecord(nameSelf))
	putText(volumeNames, 4*128+3*37, "")
	for date := range 4 {
		copy(v[volumeDates+17*date:], strings.Repeat("0", 16)) // not specified
	}
	v[volumeVersion] = 1
	return v
}

// directoryRecord returns a record of the root directory, the only directory.
func directoryRecord(name string) []byte { return record(name, rootSector, sectorSize, flagDirectory) }

// record returns the directory record of a file or a directory. Its length must be even.
func record(name string, sector, size int, flags byte) []byte {
	r := make([]byte, recordName, recordName+len(name)+1)
	copy(r[recordLocation:], both32(sector))
	copy(r[recordDataLength:], both32(size))
	copy(r[recordDate:], []byte{70, 1, 1}) // 1970-01-01
	r[recordFlags] = flags
	copy(r[recordSequenceNumber:], both16(1))
	r[recordNameLength] = byte(len(name))
	r = append(r, name...)
	if len(r)%2 == 1 {
		r = append(r, 0)
	}
	r[recordLength] = byte(len(r))
	return r
}

// pathTable returns the table of directories, which contains only the root.
func pathTable(order binary.AppendByteOrder) []byte {
	table := []byte{1, 0}
	table = order.AppendUint32(table, rootSector)
	return append(order.AppendUint16(table, 1), 0, 0)
}

// both16 and both32 return a number in little-endian and then in big-endian byte order
// [7.2.3, 7.3.3].
func both16(n int) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, uint16(n)), uint16(n))
}

func both32(n int) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(n)), uint32(n))
}
